"""The work of a run: about how long it takes, and the threads that it is worth."""

import os
from collections.abc import Callable, Iterable
from operator import attrgetter

import torch

from siftback.lab.data.data_set import DataSet
from siftback.lab.data.load import load
from siftback.lab.forward import batch_work, training_device
from siftback.lab.length import BACKWARD, FORWARD, Length
from siftback.lab.settings import Run, Settings

# Floating-point operations of a batch's forward below which threads wait longer than they save.
SMALL = 0.5e9

# What one thread does in a second, a low estimate: on small models calls take much of the time.
_A_SECOND = 1e10

SHORT = 60.0  # seconds


def most_work(trainings: Iterable[Settings]) -> float:
    """Returns the largest `batch_work` of several settings, zero of none."""
    names = attrgetter("data", "max_tokens", "model", "width", "norm", "batch_size")
    distinct = {names(settings): settings for settings in trainings}
    works = (
        batch_work(settings, load(settings.data, max_tokens=settings.max_tokens))
        for settings in distinct.values()
    )
    return max(works, default=0.0)


def is_short(settings: Settings, data: DataSet) -> bool:
    """Returns whether a run takes less than about a minute, so that several seeds cost little.

    By its length where that is a time, and otherwise by its operations, on one thread. Of an
    accelerator that says nothing, and no run is called short.
    """
    length = Length.of(Run("traditional", 1.0, 0), settings, examples := len(data.train_labels))
    if length.kind == "seconds":
        return length.amount <= SHORT
    if training_device(settings).type != "cpu":
        return False
    whole = (FORWARD + BACKWARD) * examples if length.kind == "epochs" else 1
    work = batch_work(settings, data) / settings.batch_size
    return length.amount * whole * work <= SHORT * _A_SECOND


def threads_for(work: Callable[[], float]) -> tuple[int, str]:
    """Returns the threads that training is worth: one for a small model, else the free ones.

    Where other work has the processors, several threads are slower than one, as all wait for the
    last at every operation.

    Args:
        work: Gives that of the largest model, as `batch_work` does; not called where there is no
            choice.

    Returns:
        The number, which is never more than torch's own choice; and why.
    """
    most = torch.get_num_threads()  # the cores, or what OMP_NUM_THREADS says
    if most == 1:
        return 1, "torch takes no more here"
    if work() < SMALL:
        return 1, "the model is small"
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else most
    load_now = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    free = min(most, max(1, round(processors - load_now)))
    if free < most:
        return free, f"other work takes {load_now:.1f} of {processors} processors"
    return free, "the processors are free"
