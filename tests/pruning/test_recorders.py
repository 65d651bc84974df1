"""Recorders gather while a model trains what one example at a time gives."""

from itertools import pairwise

import pytest
import torch

from resuming import Counter, check_resumes
from siftback import pruning
from siftback.errors import BatchError, ConfigError, StateError
from siftback.pruning import AUM, Forgetting
from toys import seeded


def forgetting_of_one(looks):
    """Toneva et al. 2019, as printed: a count of falls, and the highest where never learnt."""
    if True not in looks:
        return float(len(looks))
    return float(sum(a and not b for a, b in pairwise(looks)))


def test_forgetting_counts_falls():
    generator = torch.Generator().manual_seed(0)
    looks = torch.rand(7, 40, generator=generator) < 0.4
    looks[:, 0], looks[:, 1] = False, True
    recorder = Forgetting(40)
    for look in looks:  # in batches, in another order each time
        for part in torch.randperm(40, generator=generator).split(16):
            recorder.update(part, look[part])
    expected = [forgetting_of_one(column) for column in looks.T.tolist()]
    assert recorder.scores().tolist() == expected
    assert recorder.scores()[:2].tolist() == [7.0, 0.0]
    assert (recorder.scores()[1:] < 7).sum() > 30


RECORDERS = {Forgetting: lambda look: (look.argmax(1) == 0,), AUM: lambda look: (look, ZEROS)}
ZEROS = torch.zeros(12, dtype=torch.int64)


def test_every_public_recorder_has_a_row():
    public = {getattr(pruning, name) for name in pruning.__all__}
    recorders = {each for each in public if hasattr(each, "scores") and hasattr(each, "update")}
    assert recorders == set(RECORDERS)


@pytest.mark.parametrize("kind", RECORDERS)
def test_records_follow_their_examples(kind):
    looks, order = torch.randn(6, 12, 3, generator=seeded(2)), torch.randperm(12)
    one, permuted = kind(12), kind(12)
    for look in looks:
        one.update(torch.arange(12), *RECORDERS[kind](look))
        permuted.update(torch.arange(12), *RECORDERS[kind](look[order]))
    assert one.scores()[order].equal(permuted.scores())
    assert one.scores().std() > 0
    with pytest.raises(StateError, match="examples=12"):
        kind(5).load_state_dict(one.state_dict())


@pytest.mark.parametrize("kind", RECORDERS)
def test_stopping_anywhere_equals_never_stopping(kind):
    looks = torch.randn(6, 12, 3, generator=seeded(2))

    def make():
        recorder, done = kind(12), Counter()

        def steps():
            for look in looks[done.value :]:
                recorder.update(torch.arange(12), *RECORDERS[kind](look))
                done.value += 1
                yield recorder.scores()

        return {"recorder": recorder, "done": done}, steps, recorder.scores

    check_resumes(make)


def test_aum_is_minus_the_mean_margin():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 30, 4, generator=generator)
    labels = torch.randint(4, (30,), generator=generator)
    recorder = AUM(30)
    for look in logits:
        for part in torch.randperm(30, generator=generator).split(11):
            recorder.update(part, look[part].half().float(), labels[part])
    expected = []
    for i, label in enumerate(labels.tolist()):
        margins = []
        for look in logits[:, i].half().float().tolist():
            margins.append(look[label] - max(z for c, z in enumerate(look) if c != label))
        expected.append(-sum(margins) / len(margins))
    torch.testing.assert_close(recorder.scores(), torch.tensor(expected))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Forgetting(0), ConfigError, "examples=0"),
        (lambda: AUM(2.0), ConfigError, "examples=2.0"),
        (lambda: Forgetting(3).scores(), StateError, "3 of 3 examples were never updated"),
        (lambda: AUM(3).scores(), StateError, "3 of 3 examples were never updated"),
        (
            lambda: Forgetting(3).update(torch.tensor([1, 3]), torch.tensor([True, True])),
            BatchError,
            r"from 1 to 3, outside of \[0, 3\)",
        ),
        (
            lambda: Forgetting(3).update(torch.tensor([1, 1]), torch.tensor([True, True])),
            BatchError,
            "appears twice",
        ),
        (
            lambda: Forgetting(3).update(torch.tensor([1]), torch.tensor([1.0])),
            BatchError,
            r"correct=float32\[1\]: give bool\[1\]",
        ),
        (
            lambda: Forgetting(3).update(torch.tensor([1.0]), torch.tensor([True])),
            BatchError,
            r"give int64\[n\]",
        ),
        (
            lambda: AUM(3).update(torch.tensor([1]), torch.zeros(1, 2), torch.tensor([2])),
            BatchError,
            r"labels range from 2 to 2, outside of \[0, 2\)",
        ),
    ],
)
def test_bad_records_say_so(call, error, message):
    with pytest.raises(error, match=message):
        call()
