"""The time that work takes on an accelerator, which finishes later than it is queued."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds of a steady clock, read once all work queued on a device is done.

    >>> started = now(torch.device("cpu"))
    >>> now(torch.device("cpu")) >= started
    True
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
