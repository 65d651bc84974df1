"""For `siftback.frameworks.huggingface`: a Trainer's loss beside the losses of its rows."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from siftback.scorers.trained_loss import LossPair
from siftback.sequence_loss import Head, summed_losses

_MOST = 1 << 26  # numbers of logits that are compared: those of a language model fill the memory


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
