"""Processes that are forked from the tests' own, which has imported all that they need."""

import contextlib
import multiprocessing
import sys

import pytest


def processes():
    """What starts processes that train: a fork, but for autograd's threads of an accelerator."""
    import torch  # which not all tests need

    has_threads = torch.backends.cuda.is_built() or torch.accelerator.is_available()
    return multiprocessing.get_context("spawn" if has_threads else "fork")


@contextlib.contextmanager
def started(function, *arguments):
    """Gives the process that calls ``function(*arguments, done)``, and what it sends by ``done``.

    In the end it is killed.
    """
    forking = multiprocessing.get_context("fork")
    receiver, sender = forking.Pipe(duplex=False)
    process = forking.Process(target=function, args=(*arguments, sender))
    process.start()
    sender.close()
    try:
        with receiver:
            yield process, receiver
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def replicas_forked():
    """Forks the processes of replicas, which serve alike but would import PyTorch for seconds.

    Not for batches of a size that PyTorch divides among threads, which a fork does not have.
    """
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            forking = multiprocessing.get_context("fork")
            patch.setattr("torch.multiprocessing.get_context", lambda _=None: forking)
        yield
