"""One loss per sequence, and per token, of Hugging Face models: over valid tokens alone."""

import inspect
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback.errors import BatchError, ConfigError, LossError
from siftback.losses.per_example import valid_means
from siftback.tensor_arguments import unwrap_model

IGNORED = -100
"""The label of a token that no loss is computed for."""

_SEQUENCES = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ForAudioClassification",
    "ForMultipleChoice",
)
_TOKENS = ("ForTokenClassification", "ForMaskedLM")
_LANGUAGE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MarianMTModel")
_LABELS = ("labels", "shift_labels")
_UNSHIFTED_OUTPUTS = ("MaskedLMOutput", "TokenClassifierOutput", "Seq2SeqLMOutput")


class Head(NamedTuple):
    """The targets that a model's logits are compared with.

    Attributes:
        kind: Whether there is a label per sequence or per token.
        shift: Whether the logits at a position are of the next token.
        problem: The ``problem_type`` of a configuration, for labels per sequence; None if the
            labels decide.
        needs_labels: Whether the model makes its decoder's inputs of the labels.
    """

    kind: Literal["sequences", "tokens"]
    shift: bool = False
    problem: str | None = None
    needs_labels: bool = False


def sequence_losses(
    outputs_or_model: Any, inputs: Mapping[str, Any], *, shift: bool | None = None
) -> Tensor:
    """Computes one loss per sequence of a batch for a Hugging Face model.

    For language models and token classification, the mean over the sequence's valid tokens, those
    with a label other than -100 (see `token_losses`); padding has no part in it. The loss of a
    sequence without any valid token has no value and is NaN, as with `per_example`, and its
    gradient is 0: mask such rows out, give the loader ``on_nonfinite="drop"``, or leave them out
    of the data set.

    For sequence classification, what the model's ``config.problem_type`` says, or, if that is
    None, what the labels say: cross-entropy for integers, the mean squared error over the outputs
    for one label or ``"regression"``, the mean binary cross-entropy over the labels for
    ``"multi_label_classification"``.

    It has the form ``losses(model, batch)`` that `SelectiveLoader` and `SinglePass` take.
    transformers is not imported.

    Args:
        outputs_or_model: A model, which is called with the inputs without their labels; or what
            such a call returned, an output with ``logits``.
        inputs: The batch, a mapping with ``labels``: int64[B, T], or one label per sequence.
        shift: As for `token_losses`.

    Returns:
        float32[B].

    Raises:
        BatchError: If the inputs have no labels.
        ConfigError: As for `token_losses`.
        LossError: If logits and labels do not fit together.

    >>> from types import SimpleNamespace
    >>> outputs = SimpleNamespace(logits=torch.zeros(2, 4, 8))  # two sequences of a causal model
    >>> labels = torch.tensor([[1, 2, 3, 4], [1, 2, -100, -100]])
    >>> sequence_losses(outputs, {"labels": labels}, shift=True)
    tensor([2.0794, 2.0794])

    As the losses of any other model:

    >>> from siftback import SelectiveLoader
    >>> class TinyForTokenClassification(torch.nn.Embedding):
    ...     def forward(self, input_ids):
    ...         return SimpleNamespace(logits=super().forward(input_ids))
    >>> batch = {"input_ids": labels.clamp(min=0), "labels": labels}
    >>> model = TinyForTokenClassification(8, 8)
    >>> loader = SelectiveLoader([batch] * 4, model, losses=sequence_losses, keep=1 / 2)
    >>> [sequence_losses(model, kept).shape for kept in loader][0]
    torch.Size([2])
    """
    head, outputs = find_head_and_outputs(outputs_or_model, inputs, shift)
    return head_losses(head, outputs, inputs)


def token_losses(
    outputs_or_model: Any, inputs: Mapping[str, Any], *, shift: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Computes the loss of each token of a batch for a Hugging Face model, and which are valid.

    Position t of the result belongs to the **label** at position t. A causal language model
    predicts it at position t - 1, so nothing predicts the first label, which is never valid; a
    masked language model, a token classifier and the decoder of an encoder-decoder model predict
    it at position t. If the inputs contain ``shift_labels``, which are shifted already, a causal
    model is compared with them, position by position.

    Whether to shift is read from the model: from the name of its class, and, for language models,
    from what its forward computes the loss by. Where that does not decide, nothing is assumed and
    there is an error, as for models of the kind of ``BartForCausalLM``, whose own loss does not
    shift, or for a ``CausalLMOutput`` without its model: give ``shift``.

    Args:
        outputs_or_model: A model, which is called with the inputs without their labels; or what
            such a call returned, an output with ``logits``: float[B, T, classes].
        inputs: The batch, a mapping with ``labels``: int64[B, T], -100 for tokens without one.
        shift: Whether the logits at a position are those of the next token; None reads it from
            the model.

    Returns:
        float32[B, T], the cross-entropy of each token, 0 where invalid; and bool[B, T], whether it
        is valid.

    Raises:
        BatchError: If the inputs have no labels.
        ConfigError: If ``shift`` is None and unknown, or there is only one label per sequence.
        LossError: If logits and labels do not fit together.

    >>> from types import SimpleNamespace
    >>> outputs = SimpleNamespace(logits=torch.zeros(1, 4, 8))
    >>> token_losses(outputs, {"labels": torch.tensor([[1, 2, 3, -100]])}, shift=True)
    (tensor([[0.0000, 2.0794, 2.0794, 0.0000]]), tensor([[False,  True,  True, False]]))
    """
    head, outputs = find_head_and_outputs(outputs_or_model, inputs, shift)
    if head.kind != "tokens":
        raise ConfigError(
            f"a {type(outputs_or_model).__name__} has one loss per sequence: use sequence_losses"
        )
    return compute_token_losses(head, outputs, inputs)


def head_losses(head: Head, outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Computes one loss per sequence, from outputs of a model whose head is known.

    Args:
        head: What `find_head` found.
        outputs: What the model returned.
        inputs: The batch, with its labels.

    Returns:
        float32[B]; NaN for a sequence without a valid token.

    Raises:
        LossError: If logits and labels do not fit together.
    """
    if head.kind == "tokens":
        losses, mask = compute_token_losses(head, outputs, inputs)
        return valid_means(losses, mask)
    return compute_sequence_losses(head, outputs, inputs)


def summed_losses(head: Head, outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Computes the sum of the losses of all labels, whose mean is the loss that a model trains on.

    Args:
        head: What `find_head` found.
        outputs: What the model returned.
        inputs: The batch, with its labels.

    Raises:
        LossError: If logits and labels do not fit together.
    """
    if head.kind == "tokens":
        losses, mask = compute_token_losses(head, outputs, inputs)
        return losses.masked_fill(~mask, 0).sum()
    return compute_sequence_losses(head, outputs, inputs).nansum()


def has_loss(head: Head, inputs: Mapping[str, Any]) -> Tensor:
    """Returns bool[B], which sequences have a valid label, so that their loss has a value.

    >>> has_loss(Head("tokens", shift=True), {"labels": torch.tensor([[1, -100], [-100, 1]])})
    tensor([False,  True])
    """
    labels = find_labels(inputs)
    if head.kind == "tokens":
        return align_labels(head, inputs)[1].any(1)
    if labels.is_floating_point():
        return torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    return (labels.reshape(len(labels), -1) != IGNORED).any(1)


def find_labels(inputs: Mapping[str, Any]) -> Tensor:
    """Returns the labels of a batch.

    Raises:
        BatchError: If there are none.
    """
    labels = inputs.get("labels") if isinstance(inputs, Mapping) else None
    if not isinstance(labels, Tensor):
        names = f"with {', '.join(map(str, inputs))}" if isinstance(inputs, Mapping) else ""
        raise BatchError(
            f"a batch, a {type(inputs).__name__} {names}, without labels: give a mapping with "
            'a tensor "labels", or losses=fn(model, batch) for other targets'
        )
    return labels


def find_head(model: Any, *, shift: bool | None = None) -> Head:
    """Returns the head of a model, from its class, forward and configuration.

    Args:
        model: The model, in a wrapper such as ``DistributedDataParallel`` or not.
        shift: As for `token_losses`.

    Raises:
        ConfigError: If that cannot be known.
    """
    inner = unwrap_model(model)
    while isinstance(inner, nn.DataParallel) or hasattr(inner, "get_base_model"):  # of adapters
        replicated = isinstance(inner, nn.DataParallel)
        inner = unwrap_model(inner.module if replicated else inner.get_base_model())
    owner = next((kind for kind in type(inner).__mro__ if "forward" in vars(kind)), type(inner))
    config = getattr(inner, "config", None)
    is_seq2seq = bool(getattr(config, "is_encoder_decoder", False))
    if owner.__name__.endswith(_SEQUENCES):
        choices = owner.__name__.endswith("ForMultipleChoice")
        problem = "single_label_classification" if choices else None
        return Head("sequences", problem=problem or getattr(config, "problem_type", None))
    if shift is None and owner.__name__.endswith(_TOKENS):
        return Head("tokens")
    if shift is None and owner.__name__.endswith(_LANGUAGE):
        shift = loss_shifts(inner, owner, is_seq2seq)
    if shift is not None:
        return Head("tokens", shift, needs_labels=is_seq2seq)
    raise ConfigError(
        f"which labels the logits of {owner.__name__} are compared with is not known from its "
        "class: give losses=fn(model, batch), which returns one loss per example. Only where its "
        "logits are of shape [batch, tokens, classes], functools.partial(sequence_losses, "
        "shift=...) is such a function, with False or True for labels of the same or the next token"
    )


def loss_shifts(model: nn.Module, owner: type, is_seq2seq: bool) -> bool | None:
    """Returns whether the loss of a language model's forward shifts; None where unknown.

    Models whose forward calls ``self.loss_function`` compute one of transformers' losses, which
    their ``loss_type`` names; of the older ones, which do it themselves, some decoders of
    encoder-decoder models do not shift though they are named ``ForCausalLM``.
    """
    if "_loss_function" in vars(model):  # replaced by one of the user's
        return None
    forward = inspect.unwrap(vars(owner)["forward"])
    used = getattr(getattr(forward, "__code__", None), "co_names", ())
    if "loss_function" not in used:
        return False if is_seq2seq and "CrossEntropyLoss" in used else None
    loss_type = getattr(model, "loss_type", None)
    if loss_type == "ForMaskedLM":
        return False
    # What has no type of its own is given the loss of causal models.
    return True if not is_seq2seq and loss_type in (None, *_LANGUAGE) else None


def find_head_of_outputs(outputs: Any, labels: Tensor, shift: bool | None) -> Head:
    """Returns the head of outputs whose model is not known.

    Raises:
        ConfigError: If they do not say what their logits are compared with.
    """
    name, logits = type(outputs).__name__, getattr(outputs, "logits", None)
    if isinstance(logits, Tensor) and logits.ndim == 2:
        if labels.is_floating_point() and logits.shape[1] > 1:
            raise ConfigError(
                f"a {name} does not say whether these labels are numbers to predict or "
                "probabilities of classes: give the model in place of its outputs"
            )
        return Head("sequences")
    is_unshifted = any(output in name for output in _UNSHIFTED_OUTPUTS)
    if shift is not None or is_unshifted or hasattr(outputs, "log_probs"):
        return Head("tokens", bool(shift))
    if name.endswith("CausalLMOutputWithPast"):
        return Head("tokens", shift=True)
    raise ConfigError(
        f"a {name} does not say whether the logits of a position are compared with the label there "
        "or with the next one: give the model in place of its outputs, or shift=False or True"
    )


def find_head_and_outputs(
    outputs_or_model: Any, inputs: Mapping[str, Any], shift: bool | None
) -> tuple[Head, Any]:
    """Returns the head of a model and its outputs for a batch, or both of outputs."""
    labels = find_labels(inputs)
    if not callable(outputs_or_model):
        return find_head_of_outputs(outputs_or_model, labels, shift), outputs_or_model
    head = find_head(outputs_or_model, shift=shift)
    hidden = () if head.needs_labels and "decoder_input_ids" not in inputs else _LABELS
    arguments = {key: value for key, value in inputs.items() if key not in hidden}
    return head, outputs_or_model(**arguments)


def compute_token_losses(
    head: Head, outputs: Any, inputs: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """Computes `token_losses` from outputs of a model whose head is known."""
    if getattr(outputs, "log_probs", None) is not None:  # TRL's fused head, without logits
        mask = outputs.label_mask
        losses = torch.where(mask, -outputs.log_probs.float(), 0.0)
        missing = find_labels(inputs).shape[1] - mask.shape[1]
        return F.pad(losses, (missing, 0)), F.pad(mask, (missing, 0))
    logits = find_logits(outputs)
    labels, mask, shifted = align_labels(head, inputs)
    if logits.ndim != 3 or labels.ndim != 2 or logits.shape[:2] != labels.shape:
        raise LossError(
            f"logits of shape {list(logits.shape)} and labels of shape {list(labels.shape)}: "
            "expected [B, T, classes] and [B, T]; else give losses=fn(model, batch)"
        )
    if shifted:
        logits, labels = logits[:, :-1], labels[:, 1:]
    classes, labels = logits.float().transpose(1, 2), labels.to(logits.device)
    losses = F.cross_entropy(classes, labels, reduction="none", ignore_index=IGNORED)
    return F.pad(losses, (1, 0)) if shifted else losses, mask.to(logits.device)


def align_labels(head: Head, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor, bool]:
    """Returns labels, which of them are valid, and whether logits are to be shifted for them."""
    labels, shifts = find_labels(inputs), head.shift
    if shifts and isinstance(inputs.get("shift_labels"), Tensor):
        labels, shifts = inputs["shift_labels"], False
    mask = labels != IGNORED
    return labels, F.pad(mask[:, 1:], (1, 0)) if shifts else mask, shifts


def compute_sequence_losses(head: Head, outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Computes the losses of labels per sequence, from outputs of a model whose head is known."""
    logits, labels = find_logits(outputs).float(), find_labels(inputs)
    labels = labels.to(logits.device)
    if logits.ndim != 2 or len(logits) != len(labels):
        raise LossError(
            f"logits of shape {list(logits.shape)} and labels of shape {list(labels.shape)}: "
            "expected [B, classes] and one label, or one vector of labels, per sequence"
        )
    problem = head.problem
    if problem is None:  # as transformers finds it, in the model's first forward
        kinds = "single_label_classification", "multi_label_classification"
        problem = "regression" if logits.shape[1] == 1 else kinds[labels.is_floating_point()]
    if problem == "single_label_classification":
        labels = labels.reshape(-1)
        losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
        return torch.where(labels == IGNORED, torch.nan, losses)
    if logits.numel() != labels.numel():
        raise LossError(
            f"logits of shape {list(logits.shape)} and labels of shape {list(labels.shape)} for "
            f"problem_type={problem!r}: give one label per output"
        )
    labels = labels.reshape(logits.shape).to(logits.dtype)
    if problem == "regression":
        return F.mse_loss(logits, labels, reduction="none").mean(1)
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)


def find_logits(outputs: Any) -> Tensor:
    """Returns the logits of outputs.

    Raises:
        LossError: If they have none.
    """
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise LossError(
            f"a {type(outputs).__name__} has no logits to compute losses from: give a model that "
            "returns them, with return_dict=True, or losses=fn(model, batch)"
        )
    return logits
