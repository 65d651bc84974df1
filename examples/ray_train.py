"""Trains on synthetic examples by Ray Train, on those that are worth it.

``python examples/ray_train.py --workers 2`` has Ray start two workers. With ``--workers 0``, Ray's
local mode, training runs in this process, or in the processes that torchrun starts.
"""

import argparse

import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import Memory, SelectiveLoader


def train(settings):
    data, epochs = settings["data"], settings["epochs"]
    model = prepare_model(torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Without prepare_data_loader, as the loader takes this worker's share of the examples itself.
    loader = SelectiveLoader(DataLoader(data, 32, shuffle=True), memory=Memory(), epochs=epochs)
    steps = 0
    for _ in range(epochs):
        for x, y in loader:
            x, y = x.to(get_device()), y.to(get_device())
            losses = F.cross_entropy(model(x), y, reduction="none")
            loader.loss(losses).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    ray.train.report({"steps": steps, "backwards": loader.stats.backwards})


def trainer(data, epochs, workers):
    scaling = ray.train.ScalingConfig(num_workers=workers, use_gpu=torch.cuda.is_available())
    settings = {"data": data, "epochs": epochs}
    return TorchTrainer(train, train_loop_config=settings, scaling_config=scaling)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0, help="0: in this process")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    examples = TensorDataset(torch.randn(256, 8), torch.randint(3, (256,)))
    trainer(examples, arguments.epochs, arguments.workers).fit()
