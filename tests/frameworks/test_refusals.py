"""Each row of the table of what Lightning and Accelerate refuse is provoked, and says so."""

import re
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")
accelerate = pytest.importorskip("accelerate", reason="needs siftback[accelerate]")

from accelerate import Accelerator, DataLoaderConfiguration, ParallelismConfig  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402
from lightning.pytorch.strategies import SingleDeviceStrategy  # noqa: E402
from lightning_parts import (  # noqa: E402
    EXPECTED_WARNINGS,
    Endless,
    TwoLosses,
    of_cross_entropy,
    remembering,
)
from lightning_ranks import BATCH, Net, fit_selecting, plain, trainer_of, validation  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from siftback import Epochs, Kath18, Memory, Schedule, SelectiveLoader, Stale  # noqa: E402
from siftback.errors import ConfigError  # noqa: E402
from siftback.frameworks.accelerate import prepare  # noqa: E402
from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule  # noqa: E402
from toys import AT_ONCE  # noqa: E402

pytestmark = EXPECTED_WARNINGS
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("refuse, and why\n")[2]
ROWS = [
    re.split(r" \| ", row) for row in re.findall(r"^\| ((?:Light|Acc).+) \|$", TABLE, re.MULTILINE)
]


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate's settings are one for a process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Odd(SingleDeviceStrategy):
    pass


def select(module=None, loader=None, schedule=AT_ONCE, **options):
    callback = SelectiveCallback(keep=0.5, schedule=schedule)
    fit_selecting(callback, module or Net(), loader, **options)


def remember(loader=None, memory=None, **options):
    selective = SelectiveDataModule(
        plain() if loader is None else loader,
        memory or Memory(),
        val_dataloaders=validation(),
    )
    trainer_of(**options).fit(Net(), datamodule=selective)
    return selective


def remember_by(loader):
    trainer_of().fit(Net(), datamodule=SelectiveDataModule(loader, val_dataloaders=validation()))


def remember_twice():
    selective = remember(max_epochs=1)
    trainer_of().fit(Net(), datamodule=selective)


def both():
    callback = SelectiveCallback(keep=0.5, schedule=AT_ONCE)
    trainer_of(callback).fit(Net(), datamodule=remembering())


def two_loaders():
    inner = SelectiveDataModule(plain(), Memory(), val_dataloaders=validation()).datamodule
    inner.train_dataloader = lambda: [plain(), plain()]
    trainer_of().fit(Net(), datamodule=SelectiveDataModule(inner, Memory()))


def prepared(accelerator=None, loader=None, **settings):
    settings = settings or {"memory": Memory(), "epochs": 2}
    accelerator = accelerator or Accelerator(cpu=True)
    return prepare(accelerator, plain() if loader is None else loader, **settings)


def scoring(**settings):
    return {"model": Net(), "loss_fn": F.cross_entropy, "keep": 0.5, **settings}


def prepared_twice():
    accelerator = Accelerator(cpu=True)
    prepared(accelerator, accelerator.prepare(plain()))


class SortsRows(Net):
    def on_train_batch_start(self, batch, batch_idx):
        order = batch[0][:, 1].argsort()
        for rows in batch:
            rows[:] = rows[order]


def sort_rows():
    trainer_of().fit(SortsRows(), datamodule=remembering())


def dispatched():
    configuration = DataLoaderConfiguration(dispatch_batches=True)
    prepared(Accelerator(cpu=True, dataloader_config=configuration))


def sharded():
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP
    prepared(accelerator, **scoring())


def parallel():
    accelerator = Accelerator(cpu=True)
    several = property(lambda self: ParallelismConfig(tp_size=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accelerator, "parallelism_config", several)
        prepared(accelerator)


def select_from_stream():
    select(loader=DataLoader(Endless(), BATCH), schedule=Schedule(warmup=Epochs(1)))


def weigh_own_losses():
    SelectiveCallback(selector=Kath18(keep=0.5), losses=of_cross_entropy)


def remember_shorter():
    remember_by(SelectiveLoader(plain(), memory=Memory(), epochs=3, shorter_epochs=True))


def score_stream():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    next(iter(prepared(accelerator, DataLoader(Endless(), BATCH), **scoring())))


# By the beginning of what the row says.
PROVOKED = {
    "another strategy": lambda: select(strategy=Odd("cpu")),
    "the callback beside": both,
    "a schedule in epochs": select_from_stream,
    "`losses=` with": weigh_own_losses,
    "a step with two": lambda: select(TwoLosses()),
    "a rule with scoring": lambda: remember(memory=Stale(0.5, every=2)),
    "`reload_dataloaders": lambda: remember(reload_dataloaders_every_n_epochs=1),
    "a hook that": sort_rows,
    "several train": two_loaders,
    "a `SelectiveLoader` with": remember_shorter,
    "another trainer": remember_twice,
    "a loader that was": prepared_twice,
    "`dispatch_batches": dispatched,
    "`exact=False`": lambda: prepared(**scoring(exact=False)),
    "a stream with": score_stream,
    "a sharded model": sharded,
    "tensor, context": parallel,
    "`skip_first_batches`": lambda: accelerate.skip_first_batches(prepared(), 2),
}


@pytest.mark.filterwarnings("ignore:.* leaves nothing out of:UserWarning")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}"[:40])
def test_each_row_of_the_table_is_refused_in_its_words(row):
    _, what, _, message = row
    with pytest.raises((ConfigError, AttributeError), match=re.escape(message.strip("`"))):
        next(act for start, act in PROVOKED.items() if what.startswith(start))()


def test_each_refusal_has_a_row():
    assert len(ROWS) == len(PROVOKED)
