"""The scripts of several test files, one after the other in processes of one training.

Run with the number of processes, a folder to save to, and the scripts' paths from here without the
ending. The processes are forked where ``torchrun`` would start them, from one that has imported the
scripts, as importing takes longer than most of them take; and have the environment of ``torchrun``.
"""

import faulthandler
import gc
import importlib
import os
import sys
from multiprocessing import connection, get_context
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


def main(processes, out, paths):
    scripts = []
    for path in paths:
        sys.path.insert(0, str(Path(__file__).parent / path.parent))
        scripts.append(importlib.import_module(path.name))
        (out / path.name).mkdir(exist_ok=True)
    forking = get_context("fork")
    ports = forking.SimpleQueue()
    ranks = [
        forking.Process(target=run, args=(rank, processes, ports, scripts, out))
        for rank in range(processes)
    ]
    gc.collect()
    gc.freeze()  # as each collection would copy what was imported
    for rank in ranks:
        rank.start()
    # Only now, as nothing is forked beside the threads of a store; a script finds no other's keys.
    stores = [
        distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in paths
    ]
    for _ in ranks:
        ports.put([store.port for store in stores])
    waiting = {rank.sentinel: rank for rank in ranks}
    while waiting:
        for ended in connection.wait(list(waiting)):
            rank = waiting.pop(ended)
            rank.join()  # as it may have closed its files, and have no exit code yet
            if rank.exitcode:
                for other in ranks:
                    other.kill()
                sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [Path(path) for path in sys.argv[3:]])
