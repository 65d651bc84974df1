"""Losses of a smaller model."""

import copy
import time
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import check_object, is_number
from siftback.batches import tree
from siftback.errors import ConfigError
from siftback.losses.per_example import Losses, check_losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import WrappingScorer, common_device
from siftback.state import (
    Check,
    check_entries,
    dict_of,
    integer,
    raise_damaged,
    seal,
    shaped_like,
    tuple_of,
)
from siftback.tensor_arguments import check_module


class Proxy(WrappingScorer):
    """Scores a batch by the losses of a smaller model.

    Coleman et al. 2020 ("Selection via proxy") found that small models rank examples much as
    large ones do. With an optimizer the proxy is trained alongside, with one step on each training
    batch, which costs a forward and a backward pass of the proxy; without one, it is used as it
    is, such as after training it before.

    Training the proxy does not change PyTorch's global random state or the model.

    Args:
        model: The smaller model, on the device of the batches. ``losses(model, batch)``, or the
            loss function for pairs, must accept it in place of the trained model.
        optimizer: Optimizer of the proxy's parameters; None does not train it.
        scorer: Scores with the proxy; by default `Fresh`.

    Attributes:
        model: The proxy.
        forwards: Examples that the proxy has run forward, to score them or to train on them.
        backwards: Examples that the proxy was trained on.
        seconds_refresh: Seconds of host time spent training the proxy.

    Raises:
        ConfigError: If the optimizer has parameters that are not the proxy's, or the proxy is
            the trained model itself.

    >>> from siftback.losses.per_example import pair_losses
    >>> losses, small = pair_losses(nn.functional.mse_loss), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(small.weight, 2.0)
    >>> scorer = Proxy(small, torch.optim.SGD(small.parameters(), lr=0.25))
    >>> large, batch = nn.Identity(), (torch.ones(1, 1), torch.zeros(1, 1))
    >>> scorer.score(losses, large, batch, None)
    tensor([4.])
    >>> scorer.after_step(losses, large, batch)
    >>> scorer.score(losses, large, batch, None), scorer.forwards, scorer.backwards
    (tensor([1.]), 3, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        super().__init__(scorer)
        check_module(model)
        if optimizer is not None:
            kind = "torch.optim.SGD(proxy.parameters(), ...)"
            check_object("optimizer", optimizer, kind, "param_groups", "step", "zero_grad")
            parameters = {id(parameter) for parameter in model.parameters()}
            groups = [group["params"] for group in optimizer.param_groups]
            others = sum(id(parameter) not in parameters for group in groups for parameter in group)
            if others:
                raise ConfigError(
                    f"the proxy's optimizer has {others} parameters that are not the proxy's: "
                    f"give {type(optimizer).__name__}(proxy.parameters(), ...)"
                )
        self.model = model
        self.optimizer = optimizer
        self.forwards = 0
        self.backwards = 0
        self.seconds_refresh = 0.0

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Returns one score per example, float32[N], by the inner scorer with the proxy."""
        if model is self.model:
            raise ConfigError("the proxy is the model that is trained: give a smaller one")
        self.forwards += tree.size(batch) if indices is None else len(indices)
        return self.scorer.score(losses, self.model, batch, indices)

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Trains the proxy on the batch, by the mean of its losses, if it has an optimizer."""
        if self.optimizer:
            started = time.perf_counter()
            self._train(losses, batch, self.optimizer)
            self.seconds_refresh += time.perf_counter() - started
        self.scorer.after_step(losses, self.model, batch)

    def _train(self, losses: Losses, batch: Any, optimizer: torch.optim.Optimizer) -> None:
        count, device = tree.size(batch), common_device(self.model, batch)
        if not self.model.training:
            self.model.train()  # and modules of a training model that are in eval mode stay so
        optimizer.zero_grad()
        # Only the random state is restored: modes and buffers are the proxy's own.
        with torch.enable_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            values = losses(self.model, batch)
            check_losses(values, count)
            values.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        self.forwards += count
        self.backwards += count

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts, the inner scorer's state, and the proxy's if it is trained."""
        state = super().state_dict()
        if self.optimizer:
            state["model"] = {n: t.clone() for n, t in self.model.state_dict().items()}
            state["optimizer"] = copy.deepcopy(self.optimizer.state_dict())
        return seal(state)

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {**super().settings(), "trained": bool(self.optimizer)}

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"forwards": integer(), "backwards": integer()}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If only one of the two is trained, the inner scorer or the proxy differs,
                or the state is damaged.
        """
        super().check_state(state)
        if self.optimizer:
            checks = {"model": shaped_like(self.model.state_dict())}
            checks["optimizer"] = optimizer_like(self.optimizer)
            check_entries(self, state, checks)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another scorer's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        super().load_state_dict(state)
        if self.optimizer:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


def optimizer_like(optimizer: torch.optim.Optimizer) -> Check:
    """Returns a check for the state of an optimizer of the same parameters and settings."""
    groups = optimizer.state_dict()["param_groups"]
    parameters = dict(enumerate(chain(*(group["params"] for group in optimizer.param_groups))))

    def check_moments(name: str, value: Any) -> None:
        if not isinstance(value, dict) or not value.keys() <= parameters.keys():
            raise_damaged(name, value, "a dict by the numbers of the parameters")
        for key, moments in value.items():
            shape = parameters[key].shape
            if not isinstance(moments, dict):
                raise_damaged(f"{name}.{key}", moments, "a dict")
            for kind, moment in moments.items():
                shaped = isinstance(moment, Tensor) and moment.shape in (shape, ())
                if not (moment is None or (shaped and moment.is_floating_point())):
                    raise_damaged(f"{name}.{key}.{kind}", moment, f"float{list(shape)}")

    checks = (dict_of({key: setting_like(group[key]) for key in group}) for group in groups)
    return dict_of({"state": check_moments, "param_groups": tuple_of(*checks)})


def setting_like(setting: Any) -> Check:
    """Returns a check for a setting of the same kind: a schedule changes those that are numbers."""

    def check(name: str, value: Any) -> None:
        alike = is_number(value) if is_number(setting) else isinstance(value, type(setting))
        if not alike or (isinstance(setting, list) and value != setting):
            raise_damaged(name, value, f"such as {setting!r}")

    return check
