"""Bad values for everything public: refused by name, and never a raw error of our own code."""

import collections
import signal

import pytest
import torch
from bad_values import batches, constructors, functions, methods, values
from torch.utils.data import ConcatDataset, DataLoader, Subset

import pictures
from damaging import comparable
from siftback import Epochs, Indexed, InfoBatch, Memory, ScoreTable, SelectiveLoader, Uniform
from siftback.errors import BatchError, ConfigError, SiftbackError
from stateful_objects import KINDS
from stateful_parts import COUNT, MODEL, rand
from toys import dataset, seeded

# What each value is right for; for all else it is refused. Data of the user's own may be anything.
DATA = {"", "batch", "data", "dataset", "source"}
TENSORS = {"losses", "scores"}
NUMBERS = {
    "above", "beta", "c", "epochs", "epochs_done", "factor", "length_scale", "noise", "optimism",
    "temperature", "threshold", "timeout", "value",
}  # fmt: skip
NOT_ZERO = {
    "batch_size", "classes", "every", "factor", "groups", "history", "length_scale", "noise",
    "refresh", "shards", "steps", "steps_per_epoch", "sync_every", "temperature", "threads",
    "timeout", "visits", "window", "world",
}  # fmt: skip
COUNTS = NUMBERS | NOT_ZERO | {
    "batch", "columns", "depth", "epoch", "examples", "interrupt", "length", "rows", "seed",
}  # fmt: skip
SHARES = {"cap", "column", "decay", "drop", "floor", "keep", "momentum", "rank", "ratio"}
FLAGS = {
    "attach", "channels_last", "check", "compile", "drop_last", "exact", "outputs", "reduced",
    "replace", "replacement", "reweight", "self_normalised", "shuffle",
}  # fmt: skip
MAY_BE_NONE = {
    "above", "anneal", "autocast", "batch", "beta", "column", "confidence", "correct", "count",
    "end", "epochs", "exact", "guard", "index_of", "indices", "inputs", "keep", "last", "loss_fn",
    "losses",
    "mask", "memory", "model", "optimizer", "pad", "path", "pool", "rank", "rows", "rule",
    "schedule", "scorer", "selector", "shards", "steps_per_epoch", "table", "tail", "threads",
    "threshold", "visits", "weights", "world", "per_class",
}  # fmt: skip
FUNCTIONS = {"index_of", "inputs", "loss_fn", "losses", "pad"}
ITERABLE = (
    "a list", "a list of strings", "a list of floats", "an array", "no array",
    "an array of objects",
)  # fmt: skip
RIGHT = {
    "None": MAY_BE_NONE, "True": FLAGS, "5": COUNTS, "1.5": NUMBERS, "2**63": NUMBERS,
    "0": COUNTS - NOT_ZERO | SHARES, "-1": {"above"}, "-0.5": {"above"},
    "a function": FUNCTIONS, "a module": FUNCTIONS | {"model", "models"}, "a class": {"pad"},
    "a dict": {"pad"}, "a dict of one": {"pad"}, "a generator": {"generator"},
    "a rule": {"memory", "rule"}, "a selector": {"selector"}, "a string": {"path"},
    "a digit": {"path"}, "int": {"indices", "labels", "rows", "scores"},
    "bool": {"correct", "mask", "per_class"}, "float64": TENSORS | {"weights"},
    "half": TENSORS | {"weights"},
    "on the graph": TENSORS, "fp8": TENSORS | {"weights"}, "of nan": TENSORS, "empty": {"losses"},
    **{name: {"loader"} for name in ITERABLE},
}  # fmt: skip
# What names an argument in an error, where that is not its name.
SPELLED = {
    "": [""], "state": [""], "value": [""], "dataset": ["examples"], "source": ["a data set"],
    "rule": ["RS2"], "memory": ["RS2"], "losses": ["examples, and its indices"],
    "selector": ["TopK", "keep="], "data": ["loader=", "a batch is a", "pair"],
    "loader": ["a DataLoader"], "loss_fn": ["losses="], "per_class": ["keeps none of"],
}  # fmt: skip
UNKNOWN = "left to randomness"  # a TypeError of steps(), as of len()


class TooLongError(BaseException):
    """A call did not end."""


@pytest.fixture
def limited():
    """Ends a call that takes longer than a minute."""

    def stop(*_):
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    yield lambda: signal.alarm(60)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def is_of_a_model(error):
    """Whether it was raised in the user's model, which such a batch does not suit."""
    trace = error.__traceback__
    while trace is not None:
        if "torch/nn/modules" in trace.tb_frame.f_code.co_filename:
            return True
        trace = trace.tb_next
    return False


def verdict(what, argument, name, call):
    try:
        call(values()[name])
    except SiftbackError as error:
        names = (argument, argument.removesuffix("es"), *SPELLED.get(argument, ()))
        return "refused" if any(n in str(error) for n in names) else f"not named: {error}"
    except Exception as error:
        if is_of_a_model(error) or (isinstance(error, TypeError) and UNKNOWN in str(error)):
            return "right"
        return f"raw: {error!r}"
    if argument == "scores" and name in ("of nan", "fp8", "int"):  # of a table, NaN is unknown
        fits = "ScoreTable" in what or (name == "of nan" and "probabilities" in what)
        fits = fits or (name != "of nan" and "prune" in what)
        return "right" if fits else "accepted"
    return "right" if argument in DATA or argument in RIGHT.get(name, ()) else "accepted"


@pytest.mark.red
@pytest.mark.parametrize(
    "targets", [constructors, methods, functions, batches], ids=lambda targets: targets.__name__
)
def test_bad_values_are_refused_by_name(targets, asked, count, limited, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a string is the path of a table
    inputs = [(*target, name) for target in targets() for name in values()]
    counted, wrong = collections.Counter(), []
    for what, argument, call, name in inputs[:: max(1, len(inputs) // asked("inputs"))]:
        limited()
        found = verdict(what, argument, name, call)
        counted[found.partition(":")[0]] += 1
        if found not in ("right", "refused"):
            wrong.append((what, name, found))
    assert not wrong, "\n".join(map(str, wrong))
    count(f"{counted.total()} values for {targets.__name__}: {dict(counted)}")


FOLDERS = {
    "a folder": (lambda path: path, "is a folder: give the path of a file"),
    "a missing folder": (lambda path: path / "no" / "table", "is in no folder that exists"),
    "nothing": (lambda path: "", "give the path of a file, a string or a pathlib.Path"),
    "bytes": (lambda path: bytes(path / "table"), "give the path of a file, a string or"),
    "a number": (lambda path: 3, "give the path of a file, a string or a pathlib.Path"),
}


@pytest.mark.parametrize(("path", "message"), FOLDERS.values(), ids=FOLDERS)
def test_a_table_is_in_a_file(path, message, tmp_path):
    with pytest.raises(ConfigError, match=f"path=.*{message}"):
        ScoreTable(3, path=path(tmp_path))


RECORDS = {
    "a list": ([0, 1], torch.ones(2), "indices="),
    "bools": (torch.tensor([True, False]), torch.ones(2), "indices=bool"),
    "scores in a list": (torch.arange(2), [1.0, 2.0], "scores="),
    "fewer scores": (torch.arange(2), torch.ones(1), "scores=float32"),
    "more scores": (torch.arange(2), torch.ones(3), "scores=float32"),
    "bools for scores": (torch.arange(2), torch.tensor([True, False]), "scores=bool"),
    "the last row, from its end": (
        torch.tensor([-1]),
        torch.ones(1),
        "indices range from -1 to -1",
    ),
    "beyond the last row": (torch.tensor([3]), torch.ones(1), "indices range from 3 to 3"),
}


@pytest.mark.parametrize(("indices", "scores", "message"), RECORDS.values(), ids=RECORDS)
def test_a_table_records_a_score_for_each_of_its_rows(indices, scores, message):
    table = ScoreTable(3)
    with pytest.raises(BatchError, match=message):
        table.record(indices, scores)
    assert table.scores().isnan().all()


WITHIN = {Subset: lambda data: Subset(data, [5, 6, 7]), ConcatDataset: lambda data: data + data}


@pytest.mark.parametrize("kind", WITHIN)
def test_indices_are_of_the_data_set_that_is_read(kind):
    data = dataset(8)
    for source in (Indexed(data), Indexed(DataLoader(data, 4))):
        with pytest.raises(ConfigError, match=r"Indexed\(...\) of what is Indexed already"):
            Indexed(source)
    wrapped = DataLoader(WITHIN[kind](Indexed(data)), 2)
    with pytest.raises(ConfigError, match=rf"give Indexed\({kind.__name__}\(...\)\)"):
        SelectiveLoader(wrapped, memory=Memory(), epochs=2)
    (indices, _), *_ = DataLoader(Indexed(WITHIN[kind](data)), 3)
    assert indices.tolist() == [0, 1, 2], "positions in what is read"


class Endless:
    """A sampler without a length."""

    def __iter__(self):
        return iter(range(16))


SELECTING = {
    "memory": lambda: {"memory": Memory(keep=0.5, warmup=Epochs(1)), "epochs": 2},
    "infobatch": lambda: {"memory": InfoBatch(), "epochs": 2},
    "uniform": lambda: {"selector": Uniform(keep=0.5)},
}


@pytest.mark.parametrize("make", SELECTING.values(), ids=SELECTING)
def test_a_sampler_needs_no_length(make):
    loader = SelectiveLoader(DataLoader(dataset(16), 4, sampler=Endless()), **make())
    released = []
    for _ in range(2):
        for inputs, _ in loader:
            if loader.memory is not None:
                loader.loss(inputs[:, 0].abs())
        released.append(loader.stats.released)
    if loader.memory is not None:
        assert released[0] == 16
    assert released[-1] <= loader.stats.seen
    with pytest.raises(TypeError, match="not known before"):
        loader.steps(1)


DTYPES = [torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture
def default_dtype():
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


def results_of(name, made):
    """The next result of an object that was put to use."""
    room = name.partition(": ")[0]
    if room == "selector":
        some = rand(COUNT, 7)
        selected = [tuple(made.select(some, seeded(), count)) for count in (None, 5)]
        chances = made.probabilities(some) if hasattr(made, "probabilities") else None
        return selected, chances
    if room == "rule":
        drawn = made.draw(5, seeded(5))
        return drawn, made.lr_scale(drawn)
    if room == "scorer":
        return made.score(pictures.CROSS_ENTROPY, MODEL, pictures.batch(9), torch.arange(COUNT))
    return None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_by_indices_are_found_whatever_the_default_dtype(dtype, default_dtype):
    default_dtype(dtype)
    plain = DataLoader(dataset(), 8, shuffle=True)
    rule, weights = Memory(keep=0.5, unbiased=True, warmup=Epochs(1)), set()
    loader = SelectiveLoader(plain, memory=rule, epochs=3, attach=True)
    for _ in range(3):
        for inputs, _, indices, given in loader:
            losses = inputs.square().mean(1).requires_grad_()
            loader.loss(losses, indices=indices).backward()
            torch.testing.assert_close(losses.grad, given / len(given))
            weights |= {*given.tolist()}
    assert len(weights) > 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_the_default_dtype_changes_nothing(name, dtype, default_dtype):
    found = []
    for default in (torch.float32, dtype):
        torch.manual_seed(0)
        default_dtype(default)
        made = KINDS[name].make()
        KINDS[name].use(made)
        found.append((comparable(results_of(name, made)), comparable(made.state_dict())))
    assert found[0] == found[1]
