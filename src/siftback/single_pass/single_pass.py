"""One forward pass over the batch, and a backward pass over only the kept rows."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from siftback.arguments import check_choice, check_flag, check_seed
from siftback.batches import tree
from siftback.batches.stats import SinglePassStats
from siftback.errors import BatchError, ConfigError, GradientError, StateError
from siftback.losses.per_example import (
    Losses,
    LossFn,
    Reduction,
    check_losses,
    resolve_losses,
    split_pair,
)
from siftback.processes.barrier import barrier
from siftback.processes.distributed import rank_and_world
from siftback.schedule import Schedule, StepSchedule
from siftback.scorers.selection_pass import common_device, untouched
from siftback.selectors.in_batch import exact_selector, select_all
from siftback.selectors.sampling import choose, count_of
from siftback.selectors.selection import Selection, Selector, check_untrained
from siftback.single_pass.self_check import (
    GradientCheck,
    Gradients,
    compare_gradients,
    find_coupling,
    gradients,
    tolerance,
)
from siftback.single_pass.sliced_backward import Pending, kept_loss
from siftback.single_pass.trace_errors import UNTRACEABLE, explain
from siftback.single_pass.tracing import Backend, trace
from siftback.state import (
    check_digest,
    check_entries,
    generator_state,
    integer,
    load_all_or_none,
    seal,
    state_of,
)
from siftback.tensor_arguments import check_module

_STATE_VERSION = 3


class SinglePass(nn.Module):
    """Computes the losses of a batch; their backward runs only over the kept rows.

    A module whose forward is the loss of a training step, around the model: its parameters are
    the model's, and its ``state_dict()`` also has what the next selections depend on.

    Selective-Backprop without its second forward pass: "cache the activations obtained from the
    selection passes to avoid doing extra forward passes for training" (Jiang et al. 2019,
    section 4). The model is traced once into a forward and a backward graph; the forward runs on
    all N examples of a batch, the selector chooses exactly ``k = round(keep * N)`` of them by
    their losses, and the backward runs on the k rows of what the forward saved. Ideal cost of an
    epoch with share s kept, in forwards (1) and backwards (2): ``1 + 2s``, where two passes cost
    ``1 + 3s`` and ordinary training 3.

    The loss returned is ``loss_fn`` of the kept rows alone, with its reduction, class weights and
    ``ignore_index``: a sum of one term for each row, divided by what ``loss_fn`` divides it by for
    these rows; weights w of the selector multiply the terms. With ``losses``, or a function that
    gives one loss per example, it is ``1/k * sum of w_i * loss_i``. Its gradient is exactly that of
    autograd, if examples do not interact. With BatchNorm they do: its backward uses the means over
    the kept rows instead of those over the batch, see docs/single_pass.md.

    Args:
        model: The model to train. It is not copied or modified; buffers are updated as in an
            ordinary training forward of the whole batch. In several processes, wrap the single
            pass: ``DistributedDataParallel(SinglePass(model, ...))``.
        loss_fn: ``loss_fn(outputs, targets)`` for batches that are ``(inputs, targets)`` pairs.
            Its reduction is kept, see above; a function without one must return one loss per
            example. An example without any valid target has nothing to train on: it is ranked as
            one of loss 0, and the loss of rows of which none has a valid target is 0.
        losses: In place of ``loss_fn``, for any batch: ``losses(model, batch) -> Tensor[N]``.
        keep: Share of the examples to keep, in (0, 1]; ``keep = 1 / (beta + 1)``.
        beta: In place of ``keep``: the exponent, at least 0.
        selector: In place of ``keep`` and ``beta``: any selector that can keep exactly k. The
            kept losses are multiplied by its weights.
        schedule: When to select, and how much to keep; while it is off, the backward is that of
            all rows. By default after one epoch if it is by losses; without ``steps_per_epoch``,
            where the length of an epoch is not known, at once, with a warning.
        epochs: Epochs of the whole training, if the schedule needs them.
        steps_per_epoch: Training steps per epoch, which the schedule counts; required with one,
            unless it is always on.
        outputs: Whether to store the model's outputs in the attribute of this name. The function
            ``losses``, if given, must then return ``(losses, outputs)``.
        backend: "graph" runs the graphs with PyTorch's own kernels, "inductor" with compiled ones.
        check: Whether to compare the first batch's gradient with autograd's, and that of the next
            batch once the model was compiled again, which costs about two more steps each time, and
            has no side effects; and, in several processes, whether to require that
            ``DistributedDataParallel`` averages the gradients.
        seed: Seed of the selection's generator; the global one is not used.

    Attributes:
        losses: float32[N], the losses of the last batch, detached.
        selection: The rows kept of the last batch, and their weights.
        steps: Number of calls so far with gradients.
        outputs: The model's outputs for the last batch, detached; None without ``outputs=True``.
        gradient_check: The result of the latest check; None before it, or without it.
        stats: A `SinglePassStats`.

    Raises:
        ConfigError: If an argument is out of range or two exclude each other, ``loss_fn`` needs
            other arguments or reduces in a way that is not known, or ``model`` is wrapped in
            ``DistributedDataParallel`` itself.

    On a call:

    Raises:
        BatchError: If a batch is empty, has parts of mismatched sizes, or is on a different device
            from the model.
        ConfigError: If there are several processes, and nothing averages the gradients, or FSDP
            shards the weights; if nothing requires a gradient; or if the selector has learned in
            another training.
        GradientError: If the first batch's gradient is not that of the kept losses.
        LossError: If there is not one floating-point loss per example, or a ``loss_fn`` that is
            not PyTorch's reduces them in another way than those do.
        TraceError: If the model cannot be traced, or not with a dynamic batch size.

    >>> from torch.nn import functional as F
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sift = SinglePass(model, F.cross_entropy, keep=1 / 3)
    >>> for _ in range(3):
    ...     loss = sift(torch.randn(96, 8), torch.randint(4, (96,)))
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> sift.stats.forwards, sift.stats.backwards, sift.stats.compilations
    (288, 96, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn | None = None,
        *,
        losses: Losses | None = None,
        keep: float | None = None,
        beta: float | None = None,
        selector: Selector | None = None,
        schedule: Schedule | None = None,
        epochs: float | None = None,
        steps_per_epoch: int | None = None,
        outputs: bool = False,
        backend: Backend = "graph",
        check: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_module(model)
        check_traceable(model)
        self.model = model
        self.selector = exact_selector(selector, keep, beta)
        self._backend = check_choice("backend", backend, "graph", "inductor")
        self._has_outputs = check_flag("outputs", outputs)
        self._check = check_flag("check", check)
        self._schedule = StepSchedule(self.selector, schedule, epochs, steps_per_epoch)
        self._seed = check_seed(seed)
        self._generator = torch.Generator().manual_seed(self._seed)
        self.steps = 0
        self.losses = torch.empty(0, dtype=torch.float32)
        self.selection = Selection(torch.empty(0, dtype=torch.int64), torch.empty(0))
        self.outputs: Any = None
        self.gradient_check: GradientCheck | None = None
        self._checked = -1  # compilations when it was made
        self.stats = SinglePassStats()
        self._has_met = False
        self._pending: Pending = {}
        resolve_losses(loss_fn, losses)  # raises what is wrong with them
        self._losses = losses
        # Losses per example have no divisor of their own: the loss is their mean.
        self._reduction = Reduction(torch.mean if loss_fn is None else loss_fn)
        self._reduction.check_name()
        self._traced = trace(self._plain, backend, self._pending, self.stats)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_traced": None}  # which runs this model, and not a copy's own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._traced = trace(self._plain, self._backend, self._pending, self.stats)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it compiles the model itself
    def forward(self, *batch: Any) -> Tensor:
        """Returns the loss of the kept rows of a batch.

        Args:
            batch: A nested batch of N examples on the model's device, as one argument, or as
                inputs and targets.

        Returns:
            The loss of the kept rows, weighted, a scalar to call ``backward()`` on. Without
            gradients, as in validation, that of all rows: nothing is selected, learned or counted.
        """
        whole = batch[0] if len(batch) == 1 else batch
        count = tree.size(whole)
        if count == 0:
            raise BatchError("an empty batch: leave empty batches out of the loader")
        targets = split_pair(whole)[1] if self._losses is None else None
        device = common_device(self.model, whole)
        if not self.stats.seen:
            check_untrained(self.selector)
        check_averaging(self, averaged=self._check)
        if torch.is_grad_enabled():
            self._check_step(whole, targets, count, device)
        self._reduction.copy_settings()
        terms = self._terms(whole, count)
        self.losses = check_losses(self._reduction.losses(terms.detach(), None, targets), count)
        self.stats.seen += count * torch.is_grad_enabled()
        self.selection = self._select(self.losses, targets)
        self.steps += torch.is_grad_enabled()
        divisor = self._reduction.divisor(self.selection.positions, None, targets)
        if count == 1:
            return (terms * self.selection.weights).sum() / divisor
        return kept_loss(terms, self.selection, divisor, self._pending)

    def get_extra_state(self) -> dict[str, Any]:
        """Returns what the next selections depend on, beside the model's part of the state."""
        state = {
            "version": _STATE_VERSION,
            "settings": self._settings(),
            "selector": self.selector.state_dict(),
            "generator": self._generator.get_state(),
            "steps": self.steps,
            "stats": asdict(self.stats),
        }
        return seal(state)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continues from the state of another single pass, built with the same arguments.

        The counts of this one's compilations are kept.

        Raises:
            StateError: If the state is of another version, of one with other settings, or
                damaged; this one is then as it was.
        """
        version = state.get("version") if isinstance(state, dict) else None
        if version != _STATE_VERSION:
            raise StateError(f"a state of version {version!r}: give one of {_STATE_VERSION}")
        check_digest(self, state)
        fields = {"generator": generator_state, "steps": integer()}
        fields |= {"selector": state_of(self.selector), "stats": self.stats.check}
        check_entries(self, state, fields, self._settings())
        load_all_or_none((self.selector, state["selector"]))
        self._generator.set_state(state["generator"])
        self.steps = state["steps"]
        for name in ("seen", "considered", "kept", "seconds_selection"):
            setattr(self.stats, name, state["stats"][name])

    def _settings(self) -> dict[str, Any]:
        return {"seed": self._seed, **self._schedule.settings()}

    def _plain(self, batch: Any) -> tuple[Any, Any]:
        """Returns the terms of a batch, and the model's outputs if they are stored."""
        if self._losses is None:
            inputs, targets = split_pair(batch)
            outputs = self.model(inputs)
            terms = self._reduction.terms(outputs, targets)
        else:
            result: Any = self._losses(self.model, batch)
            terms, outputs = result if self._has_outputs else (result, None)
        return terms, tree.map_outputs(Tensor.detach, outputs) if self._has_outputs else None

    def _terms(self, batch: Any, count: int) -> Tensor:
        """Runs the model, traced, or untraced for a single example, which is always kept."""
        try:
            terms, self.outputs = (self._traced if count > 1 else self._plain)(batch)
        except UNTRACEABLE as error:
            with untouched(self.model, None, tree.device(batch)):
                self._plain(tree.clone(batch))  # raises what is wrong with the model or the batch
            raise explain(error, self.model) from error
        check_losses(terms, count)
        if torch.is_grad_enabled() and not terms.requires_grad:
            raise ConfigError(
                f"nothing that the loss of {type(self.model).__name__} depends on requires a "
                "gradient: unfreeze some of its parameters, or call it under torch.no_grad()"
            )
        return cast(Tensor, terms)

    def _select(self, losses: Tensor, targets: Any) -> Selection:
        keep, count = self._schedule.keep(self.steps), len(losses)
        if keep is None or not torch.is_grad_enabled():
            return select_all(losses)
        started = time.perf_counter()
        if keep != self.selector.keep:
            cast(Any, self.selector).set_keep(keep)  # the schedule has checked that it can
        # NaN ranks highest, so that it appears in the loss if it is kept. A history has numbers.
        ranked = losses.nan_to_num(nan=torch.finfo(losses.dtype).max)
        valid = self._reduction.valid(targets, count)
        if valid is not None:
            ranked = ranked.masked_fill(~valid.reshape(count, -1).any(1), 0)
        kept_count = count_of(self.selector.keep, count)
        selection = self.selector.select(ranked, self._generator, kept_count)
        self.stats.seconds_selection += time.perf_counter() - started
        self.stats.considered += count
        self.stats.kept += len(selection.positions)
        return selection

    def _check_step(self, batch: Any, targets: Any, count: int, device: torch.device) -> None:
        """Checks what only a step can show, before it changes anything."""
        if self._check and not self._has_met:
            # Each process may select by random numbers of its own.
            alike = {**self._schedule.settings(), "selector": self.selector}
            barrier("the first step of a SinglePass", alike)
            self._has_met = True
        reduction = self._reduction
        # At steps 0, 1, 3, 7, ...
        if not reduction.is_known and reduction.name != "none" and not self.steps & self.steps + 1:
            inputs, targets = split_pair(tree.clone(batch))
            with untouched(self.model, None, device), torch.no_grad():
                outputs = self.model(inputs)
                value = reduction.loss_fn(outputs, targets)
                reduction.check(value, reduction.terms(outputs, targets), outputs, targets)
        if self._check and count > 1 and self.stats.compilations != self._checked:
            self.gradient_check = self._check_gradients(batch, targets, count, device)
            self._checked = self.stats.compilations

    def _check_gradients(
        self, batch: Any, targets: Any, count: int, device: torch.device
    ) -> GradientCheck:
        """Compares gradients of the same rows; random state, buffers and history are restored."""
        ones = torch.ones(count, device=device, dtype=torch.float32)
        rows = choose(ones, torch.Generator(), count_of(self.selector.keep, count))
        divisor = self._reduction.divisor(rows.positions, None, targets)

        with untouched(self.model, None, device):
            # Copies, as a model may write to its inputs.
            terms = self._terms(tree.clone(batch), count)
            check_parameters(terms)
            fast = gradients(self.model, kept_loss(terms, rows, divisor, self._pending))

        def plain(factors_of: Callable[[Tensor], Tensor]) -> Gradients:
            with untouched(self.model, None, device):
                losses = self._plain(tree.clone(batch))[0].index_select(0, rows.positions)
                return gradients(self.model, (losses * factors_of(losses)).sum() / divisor)

        exact, uneven = plain(torch.ones_like), plain(torch.randn_like)
        result = compare_gradients(self.model, fast, exact, uneven)
        allowed = tolerance(device, exact, same_kernels=self._backend == "graph")
        if result.largest > allowed and not result.batch_norms:
            with untouched(self.model, None, device), torch.no_grad():
                coupled = find_coupling(self.model, self._plain, batch, rows.positions, count)
            raise GradientError(
                f"the single pass's gradient of {result.parameter} differs from that of the kept "
                f"losses by {result.largest:.1e} of its size, and {allowed:.0e} is what rounding "
                "explains. The first module whose output for an example depends on the others: "
                f"{coupled or 'none was found'}. Give the model layers that treat examples one by "
                "one, or train it with SelectiveLoader"
            )
        return result


def check_traceable(model: nn.Module) -> None:
    """Checks that a model can be traced whole, by each process for itself.

    Raises:
        ConfigError: If it is wrapped in ``DistributedDataParallel``, or FSDP shards its weights.
    """
    if isinstance(model, DistributedDataParallel):
        raise ConfigError(
            "SinglePass(DistributedDataParallel(model)) would not average the gradients: wrap the "
            "other way round, DistributedDataParallel(SinglePass(model, ...))"
        )
    # FSDP takes more than a second to import, and has been imported where a model is sharded by it.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharding = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel) if fsdp else ()
    if any(isinstance(module, sharding) for module in model.modules()):
        raise ConfigError(
            "SinglePass traces a model with all its weights, and FSDP (fully_shard) keeps only a "
            "shard of them in each process: use DistributedDataParallel(SinglePass(model, ...)), "
            "or select rows with InBatch or SelectiveLoader, which work with FSDP"
        )


def check_averaging(single_pass: nn.Module, averaged: bool) -> None:
    """Checks, in a training of several processes, who takes care of the gradients.

    Args:
        single_pass: The `SinglePass`, in its forward.
        averaged: Whether ``DistributedDataParallel`` must be what calls it.

    Raises:
        ConfigError: If it is not, or FSDP shards the weights.
    """
    world = rank_and_world()[1]
    if world == 1 or not torch.is_grad_enabled():
        return
    check_traceable(single_pass)
    # PyTorch has no public name for the module whose forward is running.
    wrapper: Any = DistributedDataParallel._active_ddp_module
    if averaged and not (wrapper and any(module is single_pass for module in wrapper.modules())):
        raise ConfigError(
            f"{world} processes train, and SinglePass is not called by "
            "DistributedDataParallel, so that nothing would average the gradients and the "
            "processes would diverge: call DistributedDataParallel(SinglePass(model, ...)). If "
            "you average gradients yourself, give SinglePass(check=False)"
        )


def check_parameters(losses: Tensor) -> None:
    """Checks that all parameters behind some losses are averaged, if any are.

    Raises:
        ConfigError: If ``DistributedDataParallel`` calls this, and does not know one of them, such
            as a parameter of the loss function.
    """
    wrapper: Any = DistributedDataParallel._active_ddp_module
    averaged = {*map(id, wrapper.parameters())} if wrapper else set()
    nodes: list[Any] = [losses.grad_fn] if wrapper else []
    for node in nodes:  # and those behind it, down to the parameters
        nodes += [behind for behind, _ in node.next_functions if behind and behind not in nodes]
        parameter = getattr(node, "variable", None)
        if isinstance(parameter, nn.Parameter) and id(parameter) not in averaged:
            raise ConfigError(
                f"the losses depend on a parameter {list(parameter.shape)} that is not the "
                "model's, whose gradient DistributedDataParallel(SinglePass(model, ...)) does not "
                "average: make it a part of the model, such as by model.loss_fn = loss_fn"
            )
