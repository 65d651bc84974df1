"""The numbers of the papers, as they have them, each with its place and what it was measured on."""
# ruff: noqa: RUF001 - × and – are meant.

from collections.abc import Sequence
from dataclasses import dataclass

from siftback.lab.papers import ours
from siftback.lab.papers.ours import STALE, Finder
from siftback.lab.records.frame import TABLE_1_FACTORS
from siftback.lab.records.run_summary import TRADITIONAL

RUNS = "recipes"  # holds the recipes' runs, as `siftback run --out` leaves them

SB = "Jiang et al. 2019"
POSTER = "Jiang et al., Faster DNN Training"
DIET = "Lu et al., Diet-SB"


@dataclass(frozen=True)
class Claim:
    """A number that a paper gives.

    Attributes:
        place: The paper, and where in it.
        what: What the number is.
        paper: The number, as it is there.
        there: What it was measured on.
        folders: The comparisons that ours is found in: their folders in that of all results.
        ours: Finds ours in them.
        main: Whether it is among the few that the results page has; the report has all.
    """

    place: str
    what: str
    paper: str
    there: str
    folders: Sequence[str]
    ours: Finder
    main: bool = False


# What no comparison holds, but a benchmark: place, number, the paper's, what it was measured on.
OVERHEAD = (
    f"{SB}, section 4",
    "time of selection, its forwards apart, of that of training",
    "about 3 %",
    "Wide ResNet",
)

# The paper's data set, Traditional's final error there, what the table has of each strategy at
# `TABLE_1_FACTORS`, and our comparisons. The table does not give n of Stale-SB; the text has n = 3.
_TABLE_1 = (
    (
        "CIFAR10",
        "2.96 %",
        {"SB": "1.4, 1.2, 1.5", "Stale-SB": "–, 1.5, 2.0", "Kath18": "1.4, 1.1, 1.3"},
        (f"{RUNS}/table1-small/cifar10", "table1-cifar10"),
    ),
    (
        "CIFAR100",
        "18.21 %",
        {"SB": "1.2, 1.2, 1.2", "Stale-SB": "1.5, 1.0, 1.6", "Kath18": "1.1, 0.8, 0.8"},
        (f"{RUNS}/table1-small/digits",),
    ),
    (
        "SVHN",
        "1.72 %",
        {"SB": "3.4, 3.4, 3.5", "Stale-SB": "4.3, 4.9, 5.0", "Kath18": "1.9, 2.8, 3.4"},
        (f"{RUNS}/table1-small/mnist", "table1-mnist"),
    ),
)
_STRATEGIES = {"SB": "sb", "Stale-SB": STALE, "Kath18": "kath18"}
_TABLE_1_RUNS = tuple(folder for *_, folders in _TABLE_1 for folder in folders)
_TABLE_1_DATA = "Wide ResNet; CIFAR10, CIFAR100, SVHN"


def _table_1() -> list[Claim]:
    source, factors = f"{SB}, table 1", ", ".join(f"×{factor:g}" for factor in TABLE_1_FACTORS)
    claims = []
    for data, error, printed, folders in _TABLE_1:
        setup_there = f"Wide ResNet, {data}"
        for runs in folders:
            what = "final error of Traditional"
            main = not runs.startswith(RUNS)  # the longer training
            claims.append(Claim(source, what, error, setup_there, [runs], ours.final_error, main))
            for strategy, name in _STRATEGIES.items():
                what = f"{strategy}: speed-up to {factors} of it"
                find = ours.speedup_cells(name)
                claims.append(
                    Claim(source, what, printed[strategy], setup_there, [runs], find, main)
                )
    return claims


# Shares of the Pareto-optimal points of SB and Stale-SB, Traditional and Kath18; our comparisons.
_PARETO = (
    (
        "CIFAR10",
        ("72%", "10%", "10%"),
        (
            [f"{RUNS}/{table}-small/cifar10" for table in ("table1", "fig17", "fig13")]
            + [f"{RUNS}/fig14-small"],
            ["table1-cifar10"],
        ),
    ),
    (
        "CIFAR100",
        ("47%", "43%", "8%"),
        ([f"{RUNS}/{table}-small/digits" for table in ("table1", "fig17", "fig13")],),
    ),
    (
        "SVHN",
        ("80%", "6%", "14%"),
        ([f"{RUNS}/{table}-small/mnist" for table in ("table1", "fig17")], ["table1-mnist"]),
    ),
)


def _pareto() -> list[Claim]:
    return [
        Claim(
            f"{SB}, section 5.5",
            "share of the Pareto-optimal points of time and error",
            f"SB and Stale-SB {sb}, Traditional {traditional}, Kath18 {kath18}",
            f"Wide ResNet, {name}",
            folders,
            ours.pareto,
            main=not folders[0].startswith(RUNS),
        )
        for name, (sb, traditional, kath18), group in _PARETO
        for folders in group
    ]


# Method, what it leaves out, seconds of an epoch, and the strategy and share kept that it is here.
_DIET_TABLE = (
    ("Baseline", "0 %", 45.77, TRADITIONAL, 1.0),
    ("SB", "50 %", 43.37, "sb", 0.5),
    ("Random-Backprop", "50 %", 27.19, "random", 0.5),
    ("Random-Backprop", "75 %", 18.83, "random", 0.25),
    ("EL2N", "25 %", 35.97, "el2n", 0.75),
    ("Diet-SB", "50 %, half of it before training", 37.86, "diet-sb", 0.5),
    ("Diet-SB", "62.5 %, 25 % of all before training", 32.66, "diet-sb", 0.375),
)


def _diet_table() -> list[Claim]:
    baseline = _DIET_TABLE[0][2]
    return [
        Claim(
            f"{DIET}, table 1",
            f"time of an epoch of {method}, which leaves out {left_out}",
            f"{seconds} s, {seconds / baseline:.2f} of the baseline's",
            "ResNet18, CIFAR-100, Tesla T4",
            [f"{RUNS}/diet-table-small"],
            ours.epoch(strategy, keep),
            main=keep == 0.5 and strategy != "el2n",
        )
        for method, left_out, seconds, strategy, keep in _DIET_TABLE
    ]


def _noise() -> list[Claim]:
    return [
        Claim(
            f"{SB}, section 5.4",
            f"final error of SB less Traditional's, {share} % of the labels wrong",
            text,
            "Wide ResNet, CIFAR10",
            [f"{RUNS}/fig12-small/flip{share}"],
            ours.error_difference("sb"),
            main=share == 20,
        )
        for share, text in ((1, "comparable"), (10, "comparable"), (20, "higher"))
    ]


def _posters() -> list[Claim]:
    return [
        Claim(
            POSTER,
            "examples left out by SB, and its error beside Traditional's",
            "over 85 %, comparable accuracy",
            f"{name}, model not given",
            [f"{RUNS}/poster-{name.lower()}-small"],
            ours.filtered,
            main=True,
        )
        for name in ("CIFAR10", "MNIST")
    ]


CLAIMS: Sequence[Claim] = [
    *_table_1(),
    Claim(
        f"{SB}, abstract",
        "speed-up of SB",
        "up to 3.5",
        _TABLE_1_DATA,
        _TABLE_1_RUNS,
        ours.at_best("sb"),
        main=True,
    ),
    Claim(
        f"{SB}, section 1",
        "speed-up of Stale-SB",
        "up to 5",
        _TABLE_1_DATA,
        _TABLE_1_RUNS,
        ours.at_best(STALE),
        main=True,
    ),
    Claim(
        f"{SB}, abstract",
        "speed-up of SB over Kath18",
        "1.02 to 1.8",
        _TABLE_1_DATA,
        _TABLE_1_RUNS,
        ours.over("sb", "kath18"),
        main=True,
    ),
    Claim(
        f"{SB}, section 1",
        "speed-up of Stale-SB over Kath18",
        "1.3 to 2.3",
        _TABLE_1_DATA,
        _TABLE_1_RUNS,
        ours.over(STALE, "kath18"),
        main=True,
    ),
    Claim(
        f"{SB}, section 5.3",
        "time to a target that Stale-SB, n = 3, needs beside SB",
        "26 % less on average",
        _TABLE_1_DATA,
        _TABLE_1_RUNS,
        ours.stale_time,
        main=True,
    ),
    Claim(
        f"{SB}, section 5.3",
        "time of selection passes that Stale-SB, n = 3, saves beside SB",
        "two thirds",
        _TABLE_1_DATA,
        _TABLE_1_RUNS,
        ours.stale_selection,
        main=True,
    ),
    Claim(
        f"{SB}, section 1",
        "backward passes that SB leaves out at 25 % selectivity",
        "about 70 %",
        "Wide ResNet, SVHN",
        [f"{RUNS}/table1-small/mnist"],
        ours.left_out,
        main=True,
    ),
    Claim(
        f"{SB}, section 3.2",
        "components of equal sign, gradient of the 10 % of highest losses and of all",
        "over 80 %",
        "MobileNetV2, CIFAR10",
        [f"{RUNS}/fig5-small"],
        ours.equal_signs,
        main=True,
    ),
    Claim(
        f"{SB}, figure 5",
        "cosine with the whole batch's gradient after the first epoch, 10 % of a batch",
        "highest losses above random",
        "MobileNetV2, CIFAR10",
        [f"{RUNS}/fig5-small"],
        ours.cosines,
    ),
    Claim(
        f"{SB}, section 5.2",
        "confidence in the target at its 20th percentile, after ten epochs",
        "SB 55 %",
        "data and model not given",
        [f"{RUNS}/fig8-small"],
        ours.at_percentile("fig8", 20),
    ),
    Claim(
        f"{SB}, section 5.2",
        "accuracy at the 20th percentile of that confidence",
        "SB 29 %, Traditional 3 %",
        "data and model not given",
        [f"{RUNS}/fig8-small"],
        ours.at_percentile("fig9", 20),
    ),
    *_noise(),
    Claim(
        f"{SB}, section 5.4",
        "final error of SB less Traditional's, 20 % kept",
        "within 0.92 %",
        "Wide ResNet, CIFAR10",
        [f"{RUNS}/fig13-small/cifar10"],
        ours.error_difference("sb", 0.2),
        main=True,
    ),
    Claim(
        f"{SB}, section 5.4",
        "final error of SB less Traditional's, 25 % kept",
        "within 2.54 %",
        "Wide ResNet, CIFAR100",
        [f"{RUNS}/fig13-small/digits"],
        ours.error_difference("sb", 0.25),
    ),
    *_pareto(),
    Claim(
        f"{SB}, appendix A.2",
        "variance of an example's probability of selection over training",
        "higher under SB",
        "MobileNetV2, CIFAR10",
        [f"{RUNS}/fig15-small"],
        ours.variances,
        main=True,
    ),
    Claim(
        f"{SB}, appendix A.4",
        "time of a backward over that of a forward",
        "up to 2.5",
        "MobileNetV2, several GPUs",
        [f"{RUNS}/fig18-small/{model}" for model in ("mobilenetv2", "resnet18", "densenet", "wrn")],
        ours.passes,
        main=True,
    ),
    *_posters(),
    *_diet_table(),
    Claim(
        f"{DIET}, figure a",
        "errors less Traditional's, 50 % left out",
        "Random-Backprop on par with SB",
        "ResNet18, CIFAR-100",
        [f"{RUNS}/diet-table-small"],
        ours.random_and_sb,
        main=True,
    ),
    Claim(
        f"{DIET}, experiments",
        "error of Random-Backprop less Traditional's, 75 % left out",
        "no impact on accuracy",
        "ResNet18, CIFAR-100",
        [f"{RUNS}/diet-table-small"],
        ours.error_difference("random", 0.25),
        main=True,
    ),
]
