"""The scripts of several test files, one after the other in processes of one training.

Run with the number of processes, a folder to save to, and the scripts' paths from here without the
ending; and so on for another number, once the first have ended. The processes are forked where
``torchrun`` would start them, from one that has imported the scripts, as importing takes longer
than most of them take; and have the environment of ``torchrun``.
"""

import faulthandler
import gc
import importlib
import os
import sys
from multiprocessing import active_children, connection, get_context
from pathlib import Path

import torch.distributed.fsdp  # noqa: F401, which wrappers of models would import in each process
from torch import distributed

import siftback.single_pass.single_pass  # noqa: F401, with the compiler


def run(rank, processes, ports, scripts, out):
    """Runs the scripts as one of so many processes."""
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    os.environ.update({name: str(value) for name, value in names.items()})
    for script, port in zip(scripts, ports.get(), strict=True):
        os.environ["MASTER_PORT"] = str(port)
        faulthandler.dump_traceback_later(250, exit=True)  # that no process outlives the test
        script.main(out / script.__name__)
        if distributed.is_initialized():
            distributed.destroy_process_group()


def forked(processes, out, *paths):
    """The processes of scripts, which wait for a port for each of them."""
    scripts = []
    for path in map(Path, paths):
        sys.path.insert(0, str(Path(__file__).parent / path.parent))
        scripts.append(importlib.import_module(path.name))
        (Path(out) / path.name).mkdir(parents=True, exist_ok=True)
    forking = get_context("fork")
    ports = forking.SimpleQueue()
    ranks = [
        forking.Process(target=run, args=(rank, int(processes), ports, scripts, Path(out)))
        for rank in range(int(processes))
    ]
    return ranks, ports, len(paths)


def wait_for(ranks):
    """Waits for the end of processes; where one fails, all are ended."""
    waiting = {rank.sentinel: rank for rank in ranks}
    while waiting:
        for ended in connection.wait(list(waiting)):
            rank = waiting.pop(ended)
            rank.join()  # as it may have closed its files, and have no exit code yet
            if rank.exitcode:
                for other in active_children():
                    other.kill()
                sys.exit(1)


def main(arguments):
    groups = [[]]
    for argument in arguments:
        if argument.isdigit():
            groups.append([])
        groups[-1].append(argument)
    started = [forked(*group) for group in groups[1:]]
    gc.collect()
    gc.freeze()  # as each collection would copy what was imported
    for ranks, _, _ in started:
        for rank in ranks:
            rank.start()
    # Only now, as nothing is forked beside the threads of a store; a script finds no other's keys.
    for ranks, ports, count in started:
        stores = [
            distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            for _ in range(count)
        ]
        for _ in ranks:
            ports.put([store.port for store in stores])
        wait_for(ranks)


if __name__ == "__main__":
    main(sys.argv[1:])
