"""A process of four, of which two go on alone, and then one, for `test_sharded`."""

import faulthandler
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Indexed, Memory, SelectiveLoader, SelectiveSampler
from siftback.errors import SiftbackError

COUNT, SHARDS, BATCH, EPOCHS = 203, 8, 5, 6  # 25 examples in each shard, and one more in three


def rule(**arguments):
    settings = {"keep": 0.5, "warmup": Epochs(1), "shards": SHARDS}
    return Memory(**(settings | arguments))


def plain(**arguments):
    return DataLoader(TensorDataset(torch.arange(COUNT)), BATCH, **arguments)


def loader_of(seed=3, **arguments):
    return SelectiveLoader(
        plain(shuffle=True),
        memory=rule(**arguments),
        epochs=EPOCHS,
        seed=seed,
        attach=True,
        shorter_epochs=True,
    )


def losses_of(indices, epoch):
    """A loss of its own for each example and epoch."""
    return 4 * torch.frac(indices * 0.618034 + epoch * 0.37) ** 2


def epoch_of(loader, saved_at=None):
    """The examples of each step of an epoch; and a state within it, taken after some steps."""
    steps, state, epoch = [], None, loader.epoch
    for _, indices, _ in loader:
        loader.loss(losses_of(indices, epoch))
        steps.append(indices)
        if len(steps) == saved_at:
            state = loader.state_dict()
    return steps if saved_at is None else (steps, state)


def refused(fn, *arguments):
    """The message of an error."""
    try:
        fn(*arguments)
    except SiftbackError as error:
        return f"{type(error).__name__}: {error}"


def sampled():
    """The examples that a sampler alone gives in three epochs."""
    sampler = SelectiveSampler(range(COUNT), rule(), seed=3, epochs=EPOCHS, shorter_epochs=True)
    epochs = []
    for epoch in range(3):
        epochs.append(torch.tensor(list(sampler)))
        sampler.update(epochs[-1], losses_of(epochs[-1], epoch))
    return epochs


def checkpoint(loader, path):
    """The states that all processes save together."""
    from torch.distributed.checkpoint import save  # which takes long

    save({"loader": loader.state_dict()}, checkpoint_id=path)


def resumed(path):
    """A loader that goes on from what was saved by any number of processes."""
    from torch.distributed.checkpoint import load

    loader = loader_of()
    load(state := {"loader": loader.state_dict()}, checkpoint_id=path)
    loader.load_state_dict(state["loader"])
    return loader


def first(out, rank):
    """Two epochs, which are saved, and a third."""
    loader, found = loader_of(), {}
    found["epochs"] = [epoch_of(loader), epoch_of(loader)]
    found["left_out"] = loader.left_out
    checkpoint(loader, out / "two-epochs")
    between = loader.state_dict()
    steps, within = epoch_of(loader, saved_at=2)
    found["epochs"].append(steps)
    torch.save(between, out / f"between-{rank}.pt")
    torch.save(within, out / f"within-{rank}.pt")
    for name, state in (("between", between), ("within", within)):
        again = loader_of()
        again.load_state_dict(torch.load(out / f"{name}-{rank}.pt"))
        found[name] = epoch_of(again)
        assert state.keys() == again.state_dict().keys()
    dist.barrier()
    other = (rank + 1) % dist.get_world_size()
    for name in ("between", "within"):
        found[f"other's {name}"] = refused(
            loader_of().load_state_dict, torch.load(out / f"{name}-{other}.pt")
        )
    found["sampled"] = sampled()
    found["foreign"] = refused(
        lambda: loader.record(torch.ones(1), indices=torch.tensor([other * 2]))
    )
    return found


def second(out, rank):
    """A third epoch in other processes, which is saved."""
    loader, found = resumed(out / "two-epochs"), {}
    found["epochs"] = [epoch_of(loader)]
    checkpoint(loader, out / "three-epochs")
    found["within"] = refused(loader_of().load_state_dict, torch.load(out / f"within-{rank}.pt"))
    found["between"] = refused(loader_of().load_state_dict, torch.load(out / f"between-{rank}.pt"))
    found["seeds"] = refused(epoch_of, loader_of(seed=rank))
    found["unequal"] = refused(lambda: loader_of(shards=9))
    some = plain(sampler=torch.utils.data.RandomSampler(range(9)))
    found["sampler"] = refused(lambda: SelectiveLoader(some, memory=rule(), epochs=EPOCHS))
    found["streamed"] = refused(lambda: SelectiveLoader(Indexed(plain()), memory=rule()))
    return found


def single(out, rank):
    """A fourth epoch in one process, which is saved."""
    loader = resumed(out / "three-epochs")
    found = {"epochs": [epoch_of(loader)]}
    checkpoint(loader, out / "four-epochs")
    return found


def third(out, rank):
    """A fifth epoch, again in as many processes as at first."""
    loader = resumed(out / "four-epochs")
    return {"epochs": [epoch_of(loader)], "table": loader.memory.values.clone()}


def main(out):
    faulthandler.dump_traceback_later(100, exit=True)  # that no process outlives the test
    out, own, found = Path(out), int(os.environ["RANK"]), {}
    for stage, world in ((first, 4), (second, 2), (single, 1), (third, 4)):
        if own < world:  # each stage is a training of its own, as if it were started anew
            store = f"file://{out / stage.__name__}"
            dist.init_process_group("gloo", init_method=store, rank=own, world_size=world)
            found[stage.__name__] = stage(out, own)
            dist.destroy_process_group()
    torch.save(found, out / f"{own}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
