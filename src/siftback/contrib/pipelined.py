"""Scores from a replica of the model that works while training does."""

from collections import deque
from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.contrib.replicas import DeviceReplica, ProcessReplica, Waiting, weights_of
from siftback.errors import ConfigError
from siftback.loss_functions import Losses
from siftback.scorers.fresh import Fresh, Scorer

_LAGS = 1000


class Pipelined(Scorer):
    """Scores batches ahead of their turn, on a replica of the model elsewhere.

    Jiang et al. 2019, section 3.3, "Pipelining loss computation": while training is busy with
    batch t, a replica on another engine scores the batches ``t + 1 ... t + depth``. Its weights
    are those of training as a batch was submitted, or up to ``sync_every - 1`` steps older. Where
    the replica keeps up, selecting costs training nothing but the copying of weights and batches.

    Which weights score which batch depends on steps alone, never on the clock: the same run gives
    the same examples again, on any engine, and ``depth=0, sync_every=1`` those of `Fresh`.

    The process runs on the CPU, and its script must start training below
    ``if __name__ == "__main__":``. It ends with the training process however that ends, with
    `close`, or when the scorer is no longer used. An autocast around the training loop does not
    reach it: give ``scorer=Fresh(autocast=...)``.

    Args:
        engine: "process", or a device, such as ``torch.device("cuda:1")``. On CUDA the replica
            has a stream of its own, so it may be the training's device too. On "cpu" it takes
            turns with training: there is nothing to gain but a test.
        sync_every: Steps after which the replica's weights are too old, and are copied again
            before the next batch is submitted. 1 is every step.
        depth: How many batches to score ahead; 0 makes training wait for each. More than 1 evens
            out batches and steps of unlike lengths, and makes scores older.
        scorer: What scores in the replica; `Fresh` by default. It must be without state.
        threads: Of the process; by default as many as the training process has. Share the cores
            out among the two: this is one half, ``torch.set_num_threads`` the other.
        timeout: Seconds to wait for the process's answer; for its start, at least 180.

    Attributes:
        syncs: How often weights were copied.
        lags: For each of the last 1000 batches selected from, the steps of training between the
            weights that scored it and its turn.

    Raises:
        ConfigError: Where an argument is out of its range, or when first used where the model or
            the losses cannot be copied to the engine.

    While scoring:

    Raises:
        ReplicaError: Where the process fails, with its own traceback; where it ends, or does not
            answer in time. It is then gone, and the next epoch starts another one. An error on a
            device is raised as it is.

    >>> from siftback import SelectiveLoader
    >>> x, y = torch.randn(512, 8), torch.randint(4, (512,))
    >>> data = torch.utils.data.TensorDataset(x, y)
    >>> source = torch.utils.data.DataLoader(data, batch_size=64)
    >>> scorer = Pipelined("cpu", sync_every=2)
    >>> cross_entropy = nn.functional.cross_entropy
    >>> model = nn.Linear(8, 4)
    >>> loader = SelectiveLoader(source, model, cross_entropy, keep=0.9, scorer=scorer)
    >>> for inputs, targets in loader:
    ...     cross_entropy(model(inputs), targets).backward()
    >>> len(scorer.lags), scorer.max_lag <= 3
    (8, True)
    """

    def __init__(
        self,
        engine: Literal["process"] | torch.device | str = "process",
        *,
        sync_every: int = 1,
        depth: int = 1,
        scorer: Scorer | None = None,
        threads: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        for name, value, least in (
            ("sync_every", sync_every, 1),
            ("depth", depth, 0),
            ("threads", 1 if threads is None else threads, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name}={value!r}: give a whole number, at least {least}")
        if not timeout > 0:
            raise ConfigError(f"timeout={timeout!r}: give seconds, more than 0")
        if threads is not None and engine != "process":
            raise ConfigError(f"threads={threads!r} are those of a process: leave them out")
        self._device = None if engine == "process" else _device(engine)
        self._scorer = scorer or Fresh()
        if not isinstance(self._scorer, Scorer) or self._scorer.state_dict():
            raise ConfigError(
                f"scorer={scorer!r} is none without a state of its own: give one such as Fresh()"
            )
        self.sync_every = sync_every
        self.depth = depth
        self._threads = threads
        self._timeout = float(timeout)
        self.syncs = 0
        self.lags: deque[int] = deque(maxlen=_LAGS)
        self._lag_sum = self._lag_count = self._lag_max = 0
        self._seconds_before = 0.0  # of replicas that are gone
        self._steps = 0
        self._serves: tuple[Losses, nn.Module] | None = None
        self._replica: DeviceReplica | ProcessReplica | None = None
        # Steps that training had made as the replica got its weights; None before it had any.
        self._weights_step: int | None = None
        self._weights: list[Tensor] | None = None  # of a loaded state, till the replica has them
        # Of each batch submitted: the steps at the time of its weights, and its scores.
        self._submitted: deque[tuple[int, Waiting | Tensor]] = deque()

    @property
    def seconds_sync(self) -> float:
        """Seconds in which weights were copied: of training's process, or of the CUDA device."""
        now = 0.0 if self._replica is None else self._replica.seconds_sync
        return self._seconds_before + now

    @property
    def mean_lag(self) -> float:
        """Mean of all lags so far; 0 before there are any."""
        return self._lag_sum / self._lag_count if self._lag_count else 0.0

    @property
    def max_lag(self) -> int:
        """The greatest lag so far."""
        return self._lag_max

    def score(self, losses: Losses, model: nn.Module, batch: Any) -> Tensor:
        """The scores of a batch, waited for.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``, always the same.
            model: The model, always the same.
            batch: A nested batch of N examples.

        Returns:
            float32[N], on the replica's device.

        Raises:
            ReplicaError: As said above.
        """
        return self._select_from(*self._submit(losses, model, batch))

    def submit(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Has the replica score a batch as soon as it can; takes what `score` takes."""
        self._submitted.append(self._submit(losses, model, batch))

    def collect(self) -> Tensor:
        """The scores of the batch submitted first, waited for.

        Returns:
            float32[N], on the replica's device.

        Raises:
            ReplicaError: As said above.
        """
        return self._select_from(*self._submitted.popleft())

    def cancel(self) -> None:
        """Forgets what was submitted."""
        self._submitted.clear()

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Counts the step."""
        self._steps += 1

    def close(self) -> None:
        """Ends the replica; scoring again starts another one."""
        self._submitted.clear()
        self._weights_step = self._weights = None
        if self._replica is not None:
            self._seconds_before = self.seconds_sync
            self._replica.stop()
        self._replica = self._serves = None

    def state_dict(self) -> dict[str, Any]:
        """The replica's weights and their age, and the scores of what was submitted, waited for.

        Raises:
            ReplicaError: As said above.
        """
        self._submitted = deque((step, self._wait(scores)) for step, scores in self._submitted)
        weights = self._weights
        if weights is None and self._replica is not None and self._weights_step is not None:
            weights = self._replica.weights()
        return {
            "steps": self._steps,
            "weights_step": self._weights_step,
            "weights": weights,
            "submitted": [(step, self._wait(scores).clone()) for step, scores in self._submitted],
            "syncs": self.syncs,
            "seconds_sync": self.seconds_sync,
            "lags": list(self.lags),
            "lag_sum": self._lag_sum,
            "lag_count": self._lag_count,
            "lag_max": self._lag_max,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another scorer's state."""
        self._steps = state["steps"]
        self._weights_step, self._weights = state["weights_step"], state["weights"]
        self._submitted = deque(state["submitted"])
        self.syncs = state["syncs"]
        self._seconds_before += state["seconds_sync"] - self.seconds_sync
        self.lags = deque(state["lags"], _LAGS)
        self._lag_sum, self._lag_count = state["lag_sum"], state["lag_count"]
        self._lag_max = state["lag_max"]

    def _submit(self, losses: Losses, model: nn.Module, batch: Any) -> tuple[int, Waiting]:
        try:
            replica = self._started(losses, model)
            step = self._weights_step
            if step is None or self._steps - step >= self.sync_every:
                replica.sync(weights_of(model))
                self._weights_step = step = self._steps
                self.syncs += 1
            elif self._weights is not None:
                replica.sync(self._weights)
            self._weights = None
            return step, replica.submit(batch)
        except BaseException:
            self.close()
            raise

    def _started(self, losses: Losses, model: nn.Module) -> DeviceReplica | ProcessReplica:
        if self._replica is None:
            if self._device is not None:
                self._replica = DeviceReplica(model, losses, self._scorer, self._device)
            else:
                self._replica = ProcessReplica(
                    model,
                    losses,
                    self._scorer,
                    slots=self.depth + 1,
                    threads=self._threads,
                    timeout=self._timeout,
                )
            self._serves = (losses, model)
        elif self._serves != (losses, model):
            raise ConfigError(
                "a Pipelined has a replica of one model, and was given another model or other "
                "losses: make one for each loader"
            )
        return self._replica

    def _wait(self, scores: Waiting | Tensor) -> Tensor:
        if isinstance(scores, Tensor):
            return scores
        try:
            return scores()
        except BaseException:
            self.close()
            raise

    def _select_from(self, step: int, scores: Waiting | Tensor) -> Tensor:
        found = self._wait(scores)
        lag = self._steps - step
        self.lags.append(lag)
        self._lag_sum += lag
        self._lag_count += 1
        self._lag_max = max(self._lag_max, lag)
        return found


def _device(engine: torch.device | str) -> torch.device:
    try:
        return torch.empty(0, device=engine).device  # with its number
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(
            f'engine={engine!r} cannot be used ({error}): give "process", or a device that this '
            "machine has"
        ) from error
