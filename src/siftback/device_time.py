"""The time of what an accelerator does, which it does later than it is asked."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds of a steady clock, read once all that was asked of a device is done.

    >>> started = now(torch.device("cpu"))
    >>> now(torch.device("cpu")) >= started
    True
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
