"""A process that is forked from the tests' own, which has imported all that it needs."""

import contextlib
import multiprocessing

import torch


def processes():
    """What starts processes that train: a fork, but for autograd's threads of an accelerator."""
    return multiprocessing.get_context("spawn" if torch.accelerator.is_available() else "fork")


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
