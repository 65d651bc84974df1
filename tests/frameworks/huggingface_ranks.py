"""One of two processes that train with selection; saves what it did for the tests to look at."""

from unittest.mock import patch

import torch
from hugging_face_models import (
    RESUMES_PROCESSES,
    Plain,
    Selective,
    lookup_model,
    trainer,
    weights_of,
)

from siftback import Epochs, Memory, Uniform
from siftback.frameworks import huggingface_refusals

COUNT, STOP = 75, 4  # within the second epoch
LONG = {"num_train_epochs": 3, "gradient_accumulation_steps": 2, "ddp_backend": "gloo"}


class Remembering(Memory):
    """Notes what it draws by."""

    def __init__(self):
        super().__init__(keep=0.5, warmup=Epochs(1))
        self.known = []

    def draw(self, epoch, generator):
        self.known.append(self.values[:, 0].clone())
        return super().draw(epoch, generator)


class Keeping(Selective):
    """Notes the rows that a single pass keeps of each batch."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.kept.append(self.model_wrapped.module.selection.positions)
        return loss


def selection(method):
    if method == "memory":
        return {"memory": Remembering()}
    return {"method": method, "keep": 1 / 2}


def trained(folder, method, resume=None, of=Selective, **settings):
    ours = trainer(
        folder / method,
        "language model",
        COUNT,
        of=of,
        model=lookup_model() if method == "single_pass" else None,  # as it is traced
        selection=selection(method),
        **(LONG | {"save_strategy": "steps", "save_steps": STOP} | settings),
    )
    ours.kept = []
    ours.train(resume_from_checkpoint=resume)
    return ours


def found_in(ours, method):
    lengths = {"steps": ours.state.global_step, "max_steps": ours.state.max_steps}
    found = {
        "batches": ours.batches,
        "weights": weights_of(ours),
        "losses": [float(loss) for loss in ours.losses],
        "rate": ours.lr_scheduler.get_last_lr()[0],
        **lengths,
    }
    if method == "memory":
        rule = ours.selection_given["memory"]
        found |= {"known": rule.known, "values": rule.values[:, 0].clone()}
    return found


def one_step(folder):
    """A step of two batches in each process, on the kept rows of both."""
    ours = trainer(
        folder / "step",
        "language model",
        64,
        max_steps=1,
        gradient_accumulation_steps=2,
        max_grad_norm=0.0,
        ddp_backend="gloo",
        train_sampling_strategy="sequential",
        selection={"method": "two_pass", "selector": Uniform(keep=1 / 2)},
    )
    ours.train()
    return {
        "batches": ours.batches,
        "weights": weights_of(ours),
        "loss": ours.state.log_history[0]["loss"],
    }


def of_labels(outputs, labels, num_items_in_batch=None):
    """The model's own loss, which a single pass does not take from a function."""
    logits, next_labels = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits, next_labels)


def decided(folder):
    """The method that "auto" took where a single pass is refused, which the first process says."""
    ours = trainer(
        folder / "auto",
        "language model",
        16,
        max_steps=1,
        ddp_backend="gloo",
        selection={"method": "auto"},
    )
    ours.compute_loss_func = of_labels
    ours.train()
    return ours.method


def measured(folder):
    """The method that "auto" took where both can be, and what could not be measured for it."""
    failures, measure = [], huggingface_refusals.probe

    def probe(*args, **settings):
        result = measure(*args, **settings | {"seconds": 0.1})
        failures.append(result.failures)
        return result

    with patch.object(huggingface_refusals, "probe", probe):
        ours = trainer(
            folder / "measured",
            "language model",
            16,
            model=lookup_model(),
            max_steps=1,
            ddp_backend="gloo",
            selection={"method": "auto"},
        )
        ours.train()
    return ours.method, failures


def single_pass(folder):
    """A training and another one from its checkpoint, and how the model is evaluated after."""
    settings = {"max_steps": 4, "save_steps": 2, "max_grad_norm": 0.0, "of": Keeping}
    ours = trained(folder, "single_pass", **settings)
    plain = trainer(
        folder / "plain", "language model", of=Plain, model=ours.model, ddp_backend="gloo"
    )
    found = {
        "whole": found_in(ours, "single_pass"),
        "kept": ours.kept,
        "gradients": ours.gradients,
        "evaluated": (ours.evaluate()["eval_loss"], plain.evaluate()["eval_loss"]),
        "stats": (ours.stats.seen, ours.stats.backwards),
    }
    if RESUMES_PROCESSES:
        place = str(folder / "single_pass" / "checkpoint-2")
        again = trained(folder, "single_pass", place, **settings)
        found["resumed"] = found_in(again, "single_pass") | {"kept": again.kept}
    return found


def main(folder):
    found = {"step": one_step(folder), "single_pass": single_pass(folder)}
    found["decided"], found["measured"] = decided(folder), measured(folder)
    for method in ("two_pass", "memory"):
        found[method] = {"whole": found_in(trained(folder, method), method)}
        if RESUMES_PROCESSES:
            place = str(folder / method / f"checkpoint-{STOP}")
            found[method]["resumed"] = found_in(trained(folder, method, place), method)
    rank = torch.distributed.get_rank()
    torch.save(found, folder / f"{rank}.pt")
