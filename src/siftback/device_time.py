"""Timing of work on an accelerator, which runs asynchronously."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds of a monotonic clock, read once all work queued on a device is done.

    >>> started = now(torch.device("cpu"))
    >>> now(torch.device("cpu")) >= started
    True
    """
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
