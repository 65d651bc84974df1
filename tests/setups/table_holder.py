"""A training that has a table's file, until it is killed: ``python this PATH``.

It has worker processes, forked and spawned, which outlive it for some seconds, and prints what
they and it may do.
"""

import json
import sys

import torch
from torch.utils.data import DataLoader, Dataset

from siftback.errors import ConfigError
from siftback.tables.score_table import ScoreTable


class Reading(Dataset):
    """Examples whose workers read a table, and try to write to it."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return 4

    def __getitem__(self, index):
        value = float(self.table.scores()[index])
        try:
            self.table.record(torch.tensor([index]), torch.tensor([-1.0]))
        except ConfigError as error:
            return value, str(error)
        return value, "recorded"


def read_by_workers(table, method):
    options = {"multiprocessing_context": method, "persistent_workers": True}
    loader = DataLoader(Reading(table), 2, num_workers=2, collate_fn=list, **options)
    return loader, [example for batch in loader for example in batch]


if __name__ == "__main__":
    table = ScoreTable(4, path=sys.argv[1])
    table.record(torch.arange(4), torch.arange(4.0))
    loader, forked = read_by_workers(table, "fork")
    spawning, spawned = read_by_workers(table, "spawn")
    table.record(torch.tensor([0]), torch.tensor([5.0]))
    found = {"forked": forked, "spawned": spawned, "values": table.scores().tolist()}
    print(json.dumps(found), flush=True)
    sys.stdin.read()
