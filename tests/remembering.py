"""Data sets, rules and loops for tests of what is remembered of examples."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from siftback import Indexed, SelectiveLoader, SelectiveSampler
from siftback.batches.pool import Pool
from siftback.contrib.ewma import Ewma
from siftback.contrib.gaussian_process import GaussianProcess
from siftback.contrib.ies import IES
from siftback.rules.alignprune import AlignPrune
from siftback.rules.evolved import EvolvedSampling
from siftback.rules.evos import EVOS
from siftback.rules.infobatch import InfoBatch
from siftback.rules.kakurenbo import Kakurenbo
from siftback.rules.memory import Memory
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.orderdp import OrderDP
from siftback.rules.rcap import RCAP
from siftback.rules.repb import RePB
from siftback.rules.rs2 import RS2
from siftback.rules.seta import SeTa
from siftback.rules.stale import Stale
from siftback.rules.ucb import UCB
from siftback.schedule import Epochs, Share
from toys import CLASSES, FEATURES, at_once, given_losses, seeded


class LabelledRCAP(RCAP):
    """RCAP of three classes, with as many labels as there are examples."""

    def grow(self, examples):
        self._classes = torch.empty(0, dtype=torch.int64)
        super().grow(examples)
        if self._examples:
            self.set_labels(torch.arange(self._examples) % 3)


LabelledRCAP.__name__ = "RCAP"


RULES = {
    "infobatch": lambda: InfoBatch(0.6, 0.7),
    "rs2": lambda: RS2(0.3),
    "rs2, replaced": lambda: RS2(0.5, replacement=True, tail=Share(0.25)),
    "kakurenbo": lambda: Kakurenbo(0.6),
    "ucb": lambda: UCB(0.4, every=2),
    "seta": lambda: SeTa(0.2, groups=5, delta=1.0),
    "ies": lambda: IES(threshold=0.3, window=1),
    "evolved": lambda: EvolvedSampling(0.5, warmup=Epochs(1)),
    "orderdp": lambda: OrderDP(0.8, warmup=Epochs(1)),
    "repb": lambda: RePB(0.6),
    "rcap": lambda: LabelledRCAP(keep=0.5, warmup=Epochs(1)),
    "alignprune": lambda: AlignPrune(0.6, window=3, delta=0.9),
    "evos": lambda: EVOS(0.5, every=3, warmup=Epochs(1)),
    "memory": lambda: Memory(0.5, warmup=Epochs(1), tail=Share(0.25)),
    "ratio memory": lambda: Memory(warmup=Epochs(1)),
    "ratio memory, guarded": lambda: Memory(warmup=Epochs(1), guard=NoiseGuard(CLASSES, visits=1)),
    "memory, averaged": lambda: Memory(beta=2, warmup=Share(0.25), decay=0.5),
}
"""Rules that draw every epoch but those of warm-up and tail, without scoring passes."""

REFRESHED = {
    "stale": lambda: Stale(0.5, warmup=Epochs(0)),
    "ewma": lambda: Ewma(0.5, every=2, warmup=Epochs(0)),
    "ewma without memory": lambda: Ewma(0.5, decay=0, every=2, warmup=Epochs(0)),
    "ewma of probabilities": lambda: Ewma(
        0.5, predict="probability", optimism=0.5, warmup=Epochs(0)
    ),
    "process": lambda: GaussianProcess(0.5, history=3, warmup=Epochs(0)),
    "process of probabilities": lambda: GaussianProcess(
        0.5, every=2, predict="probability", optimism=0.5, warmup=Epochs(0)
    ),
}
"""Rules that scoring passes refresh."""


class Read(Dataset):
    """A data set that notes what is read of it."""

    def __init__(self, data):
        self.data = data
        self.reads = []

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.reads.append(index)
        return self.data[index]

    def take_reads(self):
        """Returns the examples read since the last call."""
        reads, self.reads = self.reads, []
        return reads


class Counting(nn.Linear):
    """A model that counts the examples that it forwards."""

    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.forwarded = 0

    def forward(self, inputs):
        self.forwarded += len(inputs)
        return super().forward(inputs)


class Numbered(Dataset):
    """Examples that hold their own number and the loss they are to have."""

    def __init__(self, losses):
        self.losses = torch.as_tensor(losses)

    def __len__(self):
        return len(self.losses)

    def __getitem__(self, index):
        return {"number": index, "loss": self.losses[index]}


class Streamed(IterableDataset):
    """The same one after the other, each worker every n-th of them."""

    def __init__(self, losses):
        self.losses = torch.as_tensor(losses)

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, len(self.losses), stride):
            yield {"number": number, "loss": self.losses[number]}


def spread(count, seed=0):
    """Losses in no order, no two the same."""
    return torch.randperm(count, generator=seeded(seed)) / count + 0.5


def plain(data, batch_size=8, *, shuffle=True, **options):
    """A plain ``DataLoader``, as the documentation gives to `SelectiveLoader`."""
    return DataLoader(data, batch_size, shuffle=shuffle, **options)


def indexed(data, batch_size=8, *, shuffle=True, **options):
    """The draw that replaces the plain one, written out."""
    sampler = SelectiveSampler(data, shuffle=shuffle, seed=4)
    return DataLoader(Indexed(data), batch_size, sampler=sampler, **options)


def selective(loader, **arguments):
    """Over examples that hold their losses themselves; by a rule, of epochs that are passes."""
    arguments = {"model": nn.Identity(), "losses": given_losses} | arguments
    return SelectiveLoader(loader, **at_once(arguments))


def ruled(rule, count=60, **arguments):
    """A loader by a rule, over numbered examples where no other are given."""
    if "wrapped" not in arguments:
        arguments["wrapped"] = plain(Numbered(spread(count)))
    return selective(arguments.pop("wrapped"), memory=rule, **({"epochs": 8} | arguments))


def by_pass(loader, *arguments, memory=None, **options):
    """A `SelectiveLoader` whose epochs are passes over the data, shorter by what is left out."""
    return SelectiveLoader(
        loader, *arguments, memory=memory, shorter_epochs=memory is not None, **options
    )


def epoch_of(loader, training_loss=given_losses):
    """One epoch in which training finds the losses given; the numbers trained on, as they came."""
    numbers = []
    for batch in loader:
        loader.record(training_loss(None, batch).float())
        assert loader.indices.tolist() == batch["number"].tolist()
        numbers += batch["number"].tolist()
    return numbers


def loss_in(epoch, number):
    """Falls for each example, at a pace of its own, and not smoothly."""
    return 3 / (1 + epoch * ((number * 7) % 5 + 1) / 4) + 0.2 * torch.sin(number + epoch * 2.0)


def steps_of(loader, epoch):
    """An epoch by `loss_in`: the numbers and weights of each batch, as training found them."""
    for batch in loader:
        number = batch["number"]
        confidence = (number * 7 % 10).float() / 10
        losses = batch["loss"] * loss_in(epoch, number.double()).float().clamp(min=0.01)
        loader.record(losses, correct=number % 4 != 0, confidence=confidence)
        yield number.tolist(), loader.weights.tolist()


def bits(state):
    """A state with integers for floats, as its NaN are to be compared too."""
    if isinstance(state, dict):
        return {key: bits(part) for key, part in state.items()}
    is_float = isinstance(state, torch.Tensor) and state.dtype == torch.float32
    return state.view(torch.int32) if is_float else state


def by_rule(
    make_rule, source, *, pool=None, epochs=5, steps_of=steps_of, shorter_epochs=True, **options
):
    """For `check_resumes`: a training by a rule."""

    def make():
        arguments = {} if pool is None else {"pool": Pool(pool.batch_size, pool.drop_last)}
        arguments["shorter_epochs"] = shorter_epochs
        loader = ruled(make_rule(), wrapped=source(**options), epochs=epochs, **arguments)

        def steps():
            while loader.epoch < epochs:
                for numbers, weights in steps_of(loader, loader.epoch):
                    yield torch.tensor(numbers), torch.tensor(weights), loader.lr_scale
                yield None

        def end():
            stats = loader.stats
            assert stats.kept < stats.seen  # something was left out
            counts = stats.seen, stats.unread, stats.kept, stats.scored, stats.released
            remembered = {"table": loader.memory.values}  # a file's state does not hold them
            state = loader.memory.state_dict() | remembered
            del state["digest"]  # of where in a file's journal the state is
            return counts, bits(state)

        return {"loader": loader}, steps, end

    return make


def weights_of(loader, epoch):
    """The weight of each example that such an epoch trained on."""
    found = {}
    for numbers, weights in steps_of(loader, epoch):
        assert not found.keys() & set(numbers)
        found |= dict(zip(numbers, weights, strict=True))
    return found


def observed(rule, examples, epochs, seed=3):
    """Random losses for a rule to see; gives them as (example, epoch, loss), in their order."""
    rule.grow(examples)
    generator, seen = seeded(seed), []
    for epoch in range(epochs):
        for see in (rule.rescore, rule.update):
            indices = torch.randperm(examples, generator=generator)[: examples // 2]
            losses = torch.rand(len(indices), generator=generator) * 3
            see(indices, losses, epoch)
            seen += zip(indices.tolist(), [epoch] * len(indices), losses.tolist(), strict=True)
    return seen
