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
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from torch import Tensor, multiprocessing, nn

from siftback.batches import tree
from siftback.contrib import replica_process
from siftback.contrib.packing import Packed, consecutive_layouts
from siftback.contrib.replica_process import weights_of
from siftback.errors import ConfigError, ReplicaError
from siftback.losses.per_example import Losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.snapshot import Snapshot

_START_SECONDS = 180.0  # another process first imports PyTorch
_LAST_WORDS_SECONDS = 1.0

Waiting = Callable[[], Tensor]
"""Waits for the scores of a batch, and returns them."""


@dataclass
class Request:
    """A request to the process, and its answer: the bytes of scores, or None."""

    what: str
    answer: Any = None
    done: bool = False


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
        """Copies the weights that `weights_of` lists into the replica."""
        copies = weights_of(self._copy.model)
        check_shapes(copies, weights)
        started = time.perf_counter()
        with self._on_stream(weights), torch.no_grad():
            begun = self._mark()
            for copied, weight in zip(copies, weights, strict=True):
                copied.copy_(weight, non_blocking=True)
            done = self._mark()
        if not (begun and done):
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
            if done:
                done.synchronize()
                scores.record_stream(torch.cuda.current_stream(scores.device))
                while self._syncs and self._syncs[0][1].query():  # type: ignore[no-untyped-call]
                    begun, ended = self._syncs.popleft()
                    self.seconds_sync += begun.elapsed_time(ended) / 1000
            return scores

        return wait

    def weights(self) -> list[Tensor]:
        """Returns copies of the replica's weights."""
        if self._stream:
            self._stream.synchronize()
        return [weight.detach().clone() for weight in weights_of(self._copy.model)]

    def stop(self) -> None:
        """Does nothing: there is no process to stop."""

    def _on_stream(self, tensors: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """Runs on the replica's stream, after the work already queued for the tensors."""
        if not self._stream:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for tensor in tensors:
            if tensor.device.type == "cuda":
                if tensor.device != self._device:
                    self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
                tensor.record_stream(self._stream)  # its memory is not reused before
        return torch.cuda.stream(self._stream)

    def _mark(self) -> torch.cuda.Event | None:
        if not self._stream:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


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
        pickled = pickle_replica(model, losses, scorer)
        self._timeout = timeout
        nothing = Request("nothing", done=True)
        self._slots = [torch.empty(0, dtype=torch.uint8)] * slots
        self._users = [nothing] * slots  # the last request of each slot
        self._submitted = 0
        self._unanswered: deque[Request] = deque()
        self._synced = nothing
        self.seconds_sync = 0.0
        layouts = consecutive_layouts(weights_of(model))
        weights = share(torch.empty(layouts[-1].end if layouts else 0, dtype=torch.uint8))
        self._weights = [layout.view(weights) for layout in layouts]
        blob = share(torch.frombuffer(pickled, dtype=torch.uint8))
        self._start(threads)
        self._wait(self._request("loading the model", "load", blob, weights), _START_SECONDS)

    def sync(self, weights: Sequence[Tensor]) -> None:
        """Copies the weights that `weights_of` lists into the replica."""
        started = time.perf_counter()
        check_shapes(self._weights, weights)
        self._wait(self._synced)  # the weights written before must have been read
        with torch.no_grad():
            for shared, weight in zip(self._weights, weights, strict=True):
                shared.copy_(weight)
        self._synced = self._request("copying weights", "sync")
        self.seconds_sync += time.perf_counter() - started

    def submit(self, batch: Any, indices: Tensor | None) -> Waiting:
        """Begins to score a batch."""
        count = tree.size(batch)
        # With the random state that scoring in this process would use.
        packed = Packed((batch, indices, torch.get_rng_state()))
        number = self._submitted % len(self._slots)
        self._submitted += 1
        self._wait(self._users[number])  # its scores may never have been asked for
        slot = self._slots[number]
        if len(slot) < packed.span[1]:
            # Half as much again, as an even longer batch is likely to follow.
            size = packed.span[1] * 3 // 2 if len(slot) else packed.span[1]
            slot = share(torch.empty(size, dtype=torch.uint8))
            self._slots[number] = slot
            self._request("mapping memory", "slot", number, slot)
        packed.write(slot)
        request = self._request("scoring a batch", "score", number, packed.span, count)
        self._users[number] = request

        def wait() -> Tensor:
            self._wait(request)
            return torch.frombuffer(request.answer, dtype=torch.float32)

        return wait

    def weights(self) -> list[Tensor]:
        """Returns copies of the replica's weights."""
        return [shared.clone() for shared in self._weights]

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        self._end()

    def _start(self, threads: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._traces, traces = context.Pipe(duplex=False)
        threads, dtype = threads or torch.get_num_threads(), torch.get_default_dtype()
        self._process = context.Process(
            target=replica_process.serve,
            args=(theirs, traces, threads, dtype, torch.get_float32_matmul_precision()),
            name="siftback-replica",
            daemon=True,
        )
        with without_interrupts():
            self._process.start()
        theirs.close()
        traces.close()
        self._end = weakref.finalize(
            self, end_process, os.getpid(), self._process, self._connection, self._traces
        )

    def _request(self, what: str, *message: Any) -> Request:
        request = Request(what)
        self._unanswered.append(request)
        try:
            self._connection.send(message)
        except OSError:
            self._fail_ended(what)
        except BaseException:  # an interrupt, perhaps in the middle of a message
            self.stop()
            raise
        return request

    def _wait(self, request: Request, seconds: float = 0.0) -> None:
        until = time.monotonic() + (seconds or self._timeout)
        while not request.done:
            self._receive(until)

    def _receive(self, until: float) -> None:
        """Takes the next answer."""
        request = self._unanswered[0]
        try:
            if not self._connection.poll(max(0.0, until - time.monotonic())):
                self._fail_late(request.what)
            answer, error = self._connection.recv()
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
        self._unanswered.popleft()
        request.answer, request.done = answer, True

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
        with suppress(ValueError):
            how = f"by {signal.Signals(-(code or 0)).name}"
        reason = (
            "a script must start training below `if __name__ == '__main__':`; the process's own "
            "messages are in the standard error above"
            if what == "loading the model"
            else "SIGKILL often means that memory ran out"
        )
        raise ReplicaError(f"the replica's process ended {how} while {what}: {reason}{trace}")

    def _last_words(self) -> str:
        """Reads the traceback that the interpreter writes on a fatal signal, or on request."""
        trace = b""
        with suppress(OSError, EOFError):
            while self._traces.poll(0.1 if trace else _LAST_WORDS_SECONDS):
                if not (read := os.read(self._traces.fileno(), 1 << 16)):
                    break
                trace += read
        return f"\n\n{trace.decode(errors='replace')}" if trace else ""


def check_shapes(copies: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Checks that a replica fits the weights that are copied into it.

    Raises:
        ReplicaError: If it does not.
    """
    shapes = [[tuple(copied.shape) for copied in copies], [tuple(w.shape) for w in weights]]
    for index, (before, now) in enumerate(zip_longest(*shapes, fillvalue="none")):
        if before != now:
            raise ReplicaError(
                f"weight {index} of the model has shape {now} and that of its replica {before}: a "
                "replica needs weights that keep their shapes, and a resumed run the same model"
            )


def pickle_replica(model: nn.Module, losses: Losses, scorer: Scorer) -> bytearray:
    """Pickles the model on the CPU, with its losses and the scorer.

    Raises:
        ConfigError: If one of them cannot be pickled.
    """
    if any(weight.device.type != "cpu" for weight in weights_of(model)):
        model = copy.deepcopy(model).cpu()
    file = io.BytesIO()
    try:
        torch.save((model, losses, scorer), file)
    except Exception as error:
        values = {"model": model, "losses": losses, "scorer": scorer}
        culprits = [name for name, value in values.items() if not is_picklable(value)]
        raise ConfigError(
            f"the {' and the '.join(culprits) or 'model with its losses'} cannot be pickled for "
            f"a replica in another process ({error}): define classes and functions at the top of "
            "a module, without lambdas and open files, or give a device instead of "
            'place="process"'
        ) from error
    return bytearray(file.getbuffer())


def is_picklable(value: Any) -> bool:
    """Returns whether a value can be pickled."""
    with suppress(Exception):
        torch.save(value, io.BytesIO())
        return True
    return False


def share(tensor: Tensor) -> Tensor:
    """Moves a tensor to shared memory.

    Raises:
        ReplicaError: If there is too little.
    """
    try:
        return tensor.share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except RuntimeError as error:
        raise ReplicaError(
            f"no shared memory for a replica ({error}): free some, or make it larger, such as "
            "with docker run --shm-size=1g"
        ) from error


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Has a process started within not receive Ctrl-C: the training process ends it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_process(owner: int, process: Any, connection: Connection, traces: Connection) -> None:
    """Ends a replica's process, unless called in a fork of the process that owns it."""
    if os.getpid() != owner:  # a forked process, such as a worker of a DataLoader
        return
    connection.close()
    traces.close()
    process.kill()  # it has nothing to save
    process.join()
    process.close()
