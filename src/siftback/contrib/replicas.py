"""Replicas of a model on a device or in a process, which score batches while the model trains."""

import copy
import io
import os
import signal
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from torch import Tensor, multiprocessing, nn

from siftback.batches import tree
from siftback.contrib import replica_process
from siftback.contrib.packing import Packed, Place, aligned, places
from siftback.contrib.replica_process import weights_of
from siftback.errors import ConfigError, ReplicaError
from siftback.losses.per_example import Losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.snapshot import Snapshot

_START_SECONDS = 180.0  # another process first imports PyTorch
_LAST_WORDS_SECONDS = 1.0

Waiting = Callable[[], Tensor]
"""Waits for the scores of a batch, and returns them."""


class DeviceReplica:
    """A copy of the model on a device; on CUDA it runs on a separate stream.

    Args:
        model: The model; copied immediately.
        losses: ``losses(model, batch) -> Tensor[N]``.
        scorer: Computes the scores.
        device: Device of the copy.

    Attributes:
        seconds_sync: Seconds spent copying weights; on CUDA, device time.
    """

    def __init__(
        self, model: nn.Module, losses: Losses, scorer: Scorer, device: torch.device
    ) -> None:
        self._copy = Snapshot(model, lambda tensor: tensor.detach().to(device, copy=True))
        self._losses, self._scorer, self._device = losses, scorer, device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._syncs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self.seconds_sync = 0.0

    def sync(self, weights: Sequence[Tensor]) -> None:
        """Copies weights, those of `weights_of`, into the replica."""
        own = weights_of(self._copy.model)
        check_weights(own, weights)
        started = time.perf_counter()
        with self._on_stream(weights), torch.no_grad():
            begun = self._mark()
            for here, there in zip(own, weights, strict=True):
                here.copy_(there, non_blocking=True)
            done = self._mark()
        if begun is None or done is None:
            self.seconds_sync += time.perf_counter() - started
            return
        self._syncs.append((begun, done))
        for device in {weight.device for weight in weights if weight.device.type == "cuda"}:
            # An optimizer must not write to weights that are still being read.
            torch.cuda.current_stream(device).wait_event(done)

    def submit(self, batch: Any, indices: Tensor | None) -> Waiting:
        """Begins to score a batch."""
        with self._on_stream(tree.tensors(batch)):
            batch = tree.to_device(batch, self._device)
            scores = self._scorer.score(self._losses, self._copy.model, batch, indices)
            done = self._mark()

        def wait() -> Tensor:
            if done is not None:
                done.synchronize()
                scores.record_stream(torch.cuda.current_stream(scores.device))
                self._time_syncs()
            return scores

        return wait

    def weights(self) -> list[Tensor]:
        """Copies of the replica's weights."""
        if self._stream is not None:
            self._stream.synchronize()
        return [weight.detach().clone() for weight in weights_of(self._copy.model)]

    def stop(self) -> None:
        """Does nothing: there is no process to stop."""

    def _on_stream(self, tensors: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """Runs on the replica's stream, after the work already queued for the tensors."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for tensor in tensors:
            if tensor.device.type == "cuda":
                if tensor.device != self._device:
                    self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
                tensor.record_stream(self._stream)  # its memory is not reused before
        return torch.cuda.stream(self._stream)

    def _mark(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _time_syncs(self) -> None:
        while self._syncs and self._syncs[0][1].query():  # type: ignore[no-untyped-call]
            begun, done = self._syncs.popleft()
            self.seconds_sync += begun.elapsed_time(done) / 1000


class ProcessReplica:
    """A copy of the model in a separate process, on the CPU.

    The model and the losses are pickled once. Weights and batches are passed through shared
    memory that is reused. Requests are answered one by one, in order.

    Args:
        model: The model; copied immediately.
        losses: ``losses(model, batch) -> Tensor[N]``.
        scorer: Computes the scores.
        slots: Number of batches that may be waiting for their scores.
        threads: Threads of the replica; None gives as many as this process has.
        timeout: Seconds to wait for an answer.

    Attributes:
        seconds_sync: Seconds that this process spent on copying weights.

    Raises:
        ConfigError: If the model, the losses or the scorer cannot be pickled.
        ReplicaError: If the process ends, fails, or does not answer in time; raised here and by
            all methods. It is then stopped.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        scorer: Scorer,
        *,
        slots: int,
        threads: int | None,
        timeout: float,
    ) -> None:
        pickled = _pickled(model, losses, scorer)
        self._timeout = timeout
        self._slots: list[Tensor | None] = [None] * slots
        self._users: list[_Request | None] = [None] * slots  # the last request of each
        self._submitted = 0
        self._asked: deque[_Request] = deque()
        self._synced: _Request | None = None
        self.seconds_sync = 0.0
        found = places(weights_of(model))
        weights = _shared(torch.empty(found[-1].end if found else 0, dtype=torch.uint8))
        self._weights = [where.view(weights) for where in found]
        blob = _shared(torch.frombuffer(pickled, dtype=torch.uint8))
        self._start(threads)
        self._wait(self._ask("loading the model", "load", blob, weights), _START_SECONDS)

    def sync(self, weights: Sequence[Tensor]) -> None:
        """Copies weights, those of `weights_of`, into the replica."""
        started = time.perf_counter()
        check_weights(self._weights, weights)
        if self._synced is not None:  # the weights written before must have been read
            self._wait(self._synced)
        with torch.no_grad():
            for shared, weight in zip(self._weights, weights, strict=True):
                shared.copy_(weight)
        self._synced = self._ask("copying weights", "sync")
        self.seconds_sync += time.perf_counter() - started

    def submit(self, batch: Any, indices: Tensor | None) -> Waiting:
        """Begins to score a batch."""
        count = tree.size(batch)
        # With the random state that scoring in this process would use.
        packed = Packed((batch, indices, torch.get_rng_state()), offset=aligned(4 * count))
        number = self._submitted % len(self._slots)
        self._submitted += 1
        before = self._users[number]
        if before is not None:  # its scores may never have been asked for
            self._wait(before)
        slot = self._slots[number]
        if slot is None or len(slot) < packed.span[1]:
            # Half as much again, as an even longer batch is likely to follow.
            size = packed.span[1] if slot is None else packed.span[1] * 3 // 2
            slot = _shared(torch.empty(size, dtype=torch.uint8))
            self._slots[number] = slot
            self._ask("mapping memory", "slot", number, slot)
        packed.write(slot)
        scores = Place(0, torch.float32, (count,), (1,)).view(slot)
        request = self._ask("scoring a batch", "score", number, packed.span, count, scores=scores)
        self._users[number] = request

        def wait() -> Tensor:
            self._wait(request)
            assert request.scores is not None
            return request.scores

        return wait

    def weights(self) -> list[Tensor]:
        """Copies of the replica's weights."""
        return [shared.clone() for shared in self._weights]

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        self._end()

    def _start(self, threads: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._traces, traces = context.Pipe(duplex=False)
        settings = replica_process.Settings(
            threads or torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
        )
        self._process = context.Process(
            target=replica_process.serve,
            args=(theirs, traces, settings),
            name="siftback-replica",
            daemon=True,
        )
        with _without_interrupts():
            self._process.start()
        theirs.close()
        traces.close()
        self._end = weakref.finalize(
            self, _end, os.getpid(), self._process, self._connection, self._traces
        )

    def _ask(self, what: str, *message: Any, scores: Tensor | None = None) -> "_Request":
        request = _Request(what, scores)
        self._asked.append(request)
        try:
            self._connection.send(message)
        except OSError:
            self._fail_ended(what)
        except BaseException:  # an interrupt, perhaps in the middle of a message
            self.stop()
            raise
        return request

    def _wait(self, request: "_Request", seconds: float | None = None) -> None:
        until = time.monotonic() + (self._timeout if seconds is None else seconds)
        while not request.done:
            self._receive(until)

    def _receive(self, until: float) -> None:
        """Takes the next answer."""
        request = self._asked[0]
        try:
            if not self._connection.poll(max(0.0, until - time.monotonic())):
                self._fail_late(request.what)
            error = self._connection.recv()
        except (EOFError, OSError):
            self._fail_ended(request.what)
        except BaseException:
            self.stop()
            raise
        if error is not None:
            self.stop()
            raise ReplicaError(
                f"the replica failed while {request.what}: fix the error in its traceback below, "
                f"or score in the training process by leaving Pipelined out\n\n{error}"
            )
        self._asked.popleft()
        request.answered()

    def _fail_late(self, what: str) -> NoReturn:
        if hasattr(signal, "SIGUSR1") and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGUSR1)  # asks where it is
        trace = self._last_words()
        self.stop()
        raise ReplicaError(
            f"the replica did not answer within {self._timeout:g} s while {what}, and was ended: "
            "give a longer timeout=, or find out what blocks it (fewer cores than threads, or "
            f"losses that wait for something){trace}"
        )

    def _fail_ended(self, what: str) -> NoReturn:
        self._process.join(_LAST_WORDS_SECONDS)
        code, trace = self._process.exitcode, self._last_words()
        self.stop()
        how = f"with exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"by {signal.Signals(-code).name}"
        reason = (
            "a script must start training below `if __name__ == '__main__':`; the process's own "
            "messages are in the standard error above"
            if what == "loading the model"
            else "SIGKILL often means that memory ran out"
        )
        raise ReplicaError(f"the replica's process ended {how} while {what}: {reason}{trace}")

    def _last_words(self) -> str:
        """The traceback that the interpreter writes on a fatal signal, or on request."""
        said = b""
        with suppress(OSError, EOFError):
            seconds = _LAST_WORDS_SECONDS
            while self._traces.poll(seconds):
                part = os.read(self._traces.fileno(), 1 << 16)
                if not part:
                    break
                said, seconds = said + part, 0.1
        return f"\n\n{said.decode(errors='replace')}" if said else ""


class _Request:
    """A request to the process, and the scores in its memory, once there are any."""

    def __init__(self, what: str, scores: Tensor | None) -> None:
        self.what = what
        self.scores = scores
        self.done = False

    def answered(self) -> None:
        self.done = True
        if self.scores is not None:
            self.scores = self.scores.clone()  # as the memory is reused


def check_weights(here: Sequence[Tensor], there: Sequence[Tensor]) -> None:
    """Checks that a replica fits the weights that are copied into it.

    Raises:
        ReplicaError: If it does not.
    """
    shapes = [[tuple(weight.shape) for weight in weights] for weights in (here, there)]
    if shapes[0] != shapes[1]:
        place = next(
            (n for n, pair in enumerate(zip(*shapes, strict=False)) if pair[0] != pair[1]),
            min(map(len, shapes)),
        )
        was, now = ([*of, "none"][min(place, len(of))] for of in shapes)
        raise ReplicaError(
            f"weight {place} of the model has shape {now} and that of its replica {was}: a "
            "replica needs parameters and buffers that keep their shapes, and a resumed run "
            "needs the same model"
        )


def _pickled(model: nn.Module, losses: Losses, scorer: Scorer) -> bytearray:
    if any(weight.device.type != "cpu" for weight in weights_of(model)):
        model = copy.deepcopy(model).cpu()
    file = io.BytesIO()
    try:
        torch.save((model, losses, scorer), file)
    except Exception as error:
        parts = {"model": model, "losses": losses, "scorer": scorer}
        culprits = [name for name, part in parts.items() if not _can_be_pickled(part)]
        raise ConfigError(
            f"the {' and the '.join(culprits) or 'model with its losses'} cannot be pickled for "
            f"a replica in another process ({error}): define classes and functions at the top of "
            "a module, without lambdas and open files, or give a device instead of "
            'place="process"'
        ) from error
    return bytearray(file.getbuffer())


def _can_be_pickled(part: Any) -> bool:
    try:
        torch.save(part, io.BytesIO())
    except Exception:
        return False
    return True


def _shared(tensor: Tensor) -> Tensor:
    """The tensor, in shared memory."""
    try:
        return tensor.share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except RuntimeError as error:
        raise ReplicaError(
            f"no shared memory for a replica ({error}): free some, or make it larger, such as "
            "with docker run --shm-size=1g"
        ) from error


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started within does not receive Ctrl-C: the training process ends it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(owner: int, process: Any, connection: Connection, traces: Connection) -> None:
    if os.getpid() != owner:  # a forked process, such as a worker of a DataLoader
        return
    connection.close()
    traces.close()
    process.kill()  # it has nothing to save
    process.join()
    process.close()
