"""A process of two, for `test_ray`."""

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from ray_train import trainer

COUNT, EPOCHS = 250, 3


class RecordedReads(Dataset):
    """Examples that note which of them are read, which those in a loader's workers could not."""

    def __init__(self):
        torch.manual_seed(0)
        self.inputs, self.labels = torch.randn(COUNT, 8), torch.randint(3, (COUNT,))
        self.reads = []

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.reads.append(int(index))
        return self.inputs[index], self.labels[index]


def main(out):
    data = RecordedReads()
    result = trainer(data, EPOCHS, workers=0).fit()
    path = out / f"{os.environ['RANK']}.pt"  # as Ray has ended the process group
    torch.save({"reads": data.reads, **result.metrics}, path)
