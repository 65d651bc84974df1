"""For `siftback.frameworks.huggingface`: a Trainer's loss beside the losses of its rows."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from siftback.batches import tree
from siftback.errors import ConfigError
from siftback.frameworks.huggingface_refusals import advice_on_losses
from siftback.frameworks.trained_loss import LossPair, ranks_alike
from siftback.losses.sequences import Head, summed_losses
from siftback.scorers.selection_pass import untouched

_MOST = 1 << 26  # numbers of logits that are compared: those of a language model fill the memory


def observe_outputs(
    trainer: Any, compute: Callable[[Any, Any], Any], model: Any, inputs: Any
) -> tuple[Any, list[Any]]:
    """Returns a function's result, and the outputs of a trainer's model with gradients."""
    calls: list[Any] = []

    def note(module: Any, arguments: Any, outputs: Any) -> None:
        calls.extend([outputs] if torch.is_grad_enabled() else [])

    hook = trainer.model.register_forward_hook(note)
    compiled = trainer.args.torch_compile  # whose code does not call the hook
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            return compute(model, inputs), calls
    finally:
        hook.remove()


def check_loss(
    trainer: Any,
    compute: Callable[[Any, Any], tuple[Any, list[Any]]],
    result: Any,
    calls: list[Any],
    inputs: Any,
) -> None:
    """Makes sure that a trainer prefers the rows with the highest of its model's losses.

    Args:
        trainer: A `SelectiveTrainerMixin`.
        compute: Computes its loss for a model and a batch; see `observe_outputs`.
        result: What that returned for a batch.
        calls: What it got of the model.
        inputs: The batch.

    Raises:
        ConfigError: If the loss that is trained on is another one.
    """

    def pair(result: Any, calls: list[Any], inputs: Any) -> LossPair:
        loss = result[0] if isinstance(result, tuple) else result
        (outputs,) = calls
        return loss_pair(trainer.head(), loss, outputs, inputs)

    def on_rows(rows: Tensor) -> LossPair:
        some, variables = tree.take(inputs, rows), trainer.__dict__
        before, labelled = dict(variables), dict(some)
        with untouched(trainer.model, "eval", tree.device(some)):
            again = compute(trainer.model, some)
        variables.clear()
        variables.update(before)
        return pair(*again, labelled)

    advice = advice_on_losses(trainer.sift_method)
    if len(calls) != 1:
        raise ConfigError(
            f"a training step called {type(trainer.model).__name__} {len(calls)} times with "
            "gradients, so that whether it trains on the losses that rows are chosen by is not "
            f"known: {advice}"
        )
    batch_term = getattr(calls[0], "aux_loss", None) is not None  # of a router
    pairs = pair(result, calls, inputs)
    if not ranks_alike(pairs, tree.size(inputs), on_rows, has_batch_term=batch_term):
        raise ConfigError(
            f"{type(trainer).__name__} trains on another loss than the mean of the losses that "
            "rows are chosen by, which are those of the model itself, such as one with class "
            f"weights or with another term: {advice}"
        )


def loss_pair(head: Head, loss: Tensor, outputs: Any, inputs: Mapping[str, Any]) -> LossPair:
    """The loss that is trained on, beside the losses of the rows by the same outputs.

    Args:
        head: Of the model.
        loss: What the Trainer computed of the outputs.
        outputs: What the model returned.
        inputs: The batch, with its labels.

    Raises:
        LossError: If the outputs and labels do not fit together.
    """
    is_fused = getattr(outputs, "log_probs", None) is not None  # TRL's head, without logits
    values: Tensor = outputs.log_probs if is_fused else outputs.logits
    rows = max(1, min(len(values), _MOST * len(values) // max(values.numel(), 1)))
    some = values.detach()[:rows].requires_grad_()
    mask = outputs.label_mask[:rows] if is_fused else None
    alone = {"log_probs": some, "label_mask": mask} if is_fused else {"logits": some}
    labels = {
        name: inputs[name][:rows]
        for name in ("labels", "shift_labels")
        if isinstance(inputs.get(name), Tensor)
    }
    with torch.enable_grad():
        ranked = summed_losses(head, SimpleNamespace(**alone), labels)
    (gradient,) = torch.autograd.grad(ranked, some)
    with torch.no_grad():
        ranked = summed_losses(head, outputs, inputs)
    # A probability without a label is 1, and may have any gradient.
    return LossPair(loss, ranked, _edge(values), gradient, 1.0 if mask is None else mask.float())


def _edge(values: Tensor) -> GradientEdge:
    """Where outputs are in the graph, before Accelerate makes them float32.

    The model itself computes its loss from what it made before that.
    """
    edge = get_gradient_edge(values)
    while edge.node.name().startswith("ToCopyBackward"):
        node, output = edge.node.next_functions[0]
        if node is None:
            break
        edge = GradientEdge(node, output)
    return edge
