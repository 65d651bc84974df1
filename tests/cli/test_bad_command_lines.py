"""Bad command lines: exit code 2 and a sentence that names what was given, before any training."""

import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from command_line import Call

# Of each setting what is no value of it, and what is out of its range as the error writes it.
WORDS = ("x", "", "nan", "inf", "-inf", "1e999", "1/0", "0,5", "[red]")
NUMBERS = {
    "epochs": ("0.0", "-1.0"),
    "budget": ("0.0", "-2.5"),
    "cost-budget": ("0.0", "-1.0"),
    "lr": ("0.0", "-0.1"),
    "momentum": ("-0.1", "1.0", "2.0"),
    "weight-decay": ("-1.0", "-0.5"),
    "ema": ("0.0", "1.0", "-1.0"),
    "label-smoothing": ("1.0", "-0.1"),
    "mixup": ("-1.0", "-0.5"),
    "clip": ("0.0", "-1.0"),
    "flip": ("1.5", "-0.1"),
    "floor": ("1.0", "-0.1"),
    "decay": ("1.0", "-0.1"),
    "score-epochs": ("-1.0", "-0.5"),
}
INTEGERS = {
    "width": ("0", "-1", "99999999999"),
    "batch-size": ("0", "-1", "5000"),
    "history": ("0", "-1", "99999999999"),
    "cutout": ("-1", "99999999999"),
    "train-limit": ("0", "-1", "5000"),
    "evaluations": ("0", "-1", "99999999999"),
    "validation": ("0", "-1", "5000"),
    "stale-every": ("0", "-1", "99999999999"),
    "score-models": ("0", "-1", "99999999999"),
}
NO_INTEGERS = ("x", "", "1.5", "nan", "1/2", "1e3")
NAMES = ("data", "model", "norm", "rate", "precision", "device", "observe")
WRITTEN = {
    "time-budget": ("12", "-1s", "1w", ""),
    "warmup": ("0.15", "x", "-1%", "nan%"),
    "tail": ("0.1", "", "1e999%"),
}

# Command lines, and what their error has to say.
LINES = {
    # of the command line itself
    "nosuch": "No such command 'nosuch'",
    "--nosuch": "No such option: --nosuch",
    "compare stray": "(stray)",
    "compare --nosuch 1": "--nosuch",
    "compare --width": "'--width' requires an argument",
    "compare --tensorboard=1": "'--tensorboard'",
    "strategies stray": "(stray)",
    "prune": "'--scores'",
    "run": "Missing argument",
    "suspects": "'--run'",
    # settings
    "compare --warmup 100%": "warmup=100% and tail=0% leave no training in between",
    "compare --tail 101%": "tail=1.01",
    "compare --warmup 60% --tail 40%": "warmup=60% and tail=40% leave no training in between",
    "compare --warmup 60% --epochs 8": "Memory(): warmup=60% and tail=45% leave no training",
    "compare --warmup 5e --epochs 8": "Memory(): warmup=5e and tail=45% leave no training",
    "compare --tail 90%": "Memory(): warmup=15% and tail=90% leave no training",
    "compare --budget 100": "give less of them, by --warmup or --tail, or another length",
    "compare --strategies sb-memory-default@0.25": "Memory() finds its share itself, omit @0.25",
    "train --strategy sb-memory-ratio@1/3": "Memory(tail=Epochs(0)) finds its share itself",
    "compare --time-budget 0s": "time_budget=0.0",
    "compare --stop-at 5": "stop_at '5'",
    "compare --stop-at error=x": "stop_at 'error=x'",
    "compare --stop-at error=100%": "stop_at=100.0",
    "compare --evaluate-at x": "evaluate_at 'x'",
    "compare --evaluate-at 0.1,1.5": "evaluate_at=1.5",
    "compare --evaluate-at 0": "evaluate_at=0.0",
    "compare --evaluate-at 1e999%": "evaluate_at '1e999%'",
    "compare --epochs 1 --budget 1": "epochs=1.0 and budget=1.0",
    "compare --budget 1 --cost-budget 9": "budget=1.0 and cost_budget=9.0",
    "compare --rate steps:0e:x0.1": "'steps:0e:x0.1'",
    "compare --rate steps:50%:x2": "'steps:50%:x2'",
    "compare --rate steps:60e:x0.1 --time-budget 1s": "'steps:60e:x0.1'",
    "compare --precision fp16 --device cpu": "'fp16' on cpu",
    "compare --lr 1e-999999999": "lr=0.0",
    # models and data
    "compare --model wrn-11-1": "depth 11",
    "compare --model wrn-100000-1": "depth 100000",
    "compare --model wrn-10-99999999999": "'wrn-10-99999999999'",
    "compare --model densenet-bc-5": "depth 5",
    "compare --width 1000000": "cnn-1000000 needs",
    "compare --width 2147483647": "width=2147483647 is too large",
    "compare --model mlp --width 10000000": "mlp-10000000 needs",
    "compare --data npz:": "give npz:PATH",
    "compare --data npz:{file}": "npz:{file} cannot be read",
    "compare --data npz:{nowhere}": "no file {nowhere}",
    "compare --data npz:{folder}": "npz:{folder}: there is no file {folder}",
    "compare --data imagefolder:{folder}": "{folder} holds 0 folders",
    "compare --data imagefolder:{nowhere}": "no folder {nowhere}",
    "compare --data imagefolder:{folder},nosuch=1": "no option 'nosuch'",
    "compare --data imagefolder:{folder},crop=1,crop=2": "crop is given twice",
    # strategies, shares and seeds
    "compare --strategies nosuch": "no strategy 'nosuch'",
    "compare --strategies ''": "no strategy ''",
    "compare --strategies ,": "strategies ['', '']",
    "compare --strategies sb,sb": "strategies ['sb', 'sb']",
    "compare --strategies matched": "matched is not a strategy",
    "compare --strategies sb@": "'sb@'",
    "compare --strategies sb@x": "'sb@x'",
    "compare --strategies sb@1/0": "'sb@1/0'",
    "compare --strategies sb@2": "keep=2.0",
    "compare --strategies sb@nan": "'sb@nan'",
    "compare --strategies sb@1e999": "'sb@1e999'",
    "compare --strategies traditional@0.5": "'traditional@0.5'",
    "compare --strategies stale-sb-0": "'stale-sb-0'",
    "compare --strategies 'Memory(beta=2)'": "no strategy 'Memory(beta=2)'",
    "compare --strategies 'Memory(keep=x)'": "'x': give a number",
    "compare --strategies 'Memory(keep=2)'": "keep=2.0 is not a share",
    "compare --strategies 'Memory('": "no strategy 'Memory('",
    "compare --strategies 'Memory(),sb-memory-default'": "none twice",
    "compare --strategies 'OrderDP(subset=0.7, top=0.6)'": "no strategy 'OrderDP(",
    "compare --strategies stale-sb-99999999999": "'stale-sb-99999999999'",
    "compare --strategies sb@0.5,sb --keep 0.5": "sb-keep0.5-seed0 would run twice",
    "compare --strategies sb --keep 2": "keep=2.0 is not a share",
    "compare --strategies sb --keep 0": "keep=0.0 is not a share",
    "compare --keep 0.5": "--keep 0.5: traditional, Memory() would not go by it",
    "compare --keep 0.5 --strategies traditional,sb@0.25": "--keep 0.5: traditional, sb@0.25 would",
    "compare --beta 2 --strategies 'Memory(keep=0.5)'": "--beta 2: Memory(keep=0.5) would not go",
    "compare --keep ''": "--keep ''",
    "compare --keep nan": "--keep 'nan'",
    "compare --keep 1e999": "--keep '1e999'",
    "compare --keep 0.5,": "--keep '0.5,'",
    "compare --strategies sb --keep 0.5,0.5": "keeps [0.5, 0.5]",
    "compare --strategies sb --keep 0.3333,0.33333": "would run twice",
    "compare --strategies sb --keep 0.33,1/3": "sb-keep0.33-seed0, sb-keep0.3333-seed0",
    "compare --keep 0.5 --beta 1": "--keep 0.5 and --beta 1",
    "compare --beta=-1": "--beta -1",
    "compare --beta x": "--beta 'x'",
    "compare --beta 1e999": "--beta '1e999'",
    "compare --seed x": "--seed 'x'",
    "compare --seed ''": "--seed ''",
    "compare --seed 1.5": "--seed '1.5'",
    "compare --seed 1,1": "seeds [1, 1]",
    "compare --seed=-1": "seed=-1",
    "compare --seed 99999999999": "seed=99999999999",
    "train --seed x": "'--seed'",
    "train --seed=-1": "seed=-1",
    "train --seed 99999999999": "seed=99999999999",
    "train --strategy sb --keep 0.3,0.5": "--keep 0.3,0.5: give one",
    "train --strategy sb --beta 1,2": "--beta 1,2: give one",
    "train --keep 0.5": "--keep 0.5: Memory() would not go by it",
    "train --keep x": "--keep 'x'",
    "train --strategy sb,random": "no strategy 'sb,random'",
    "compare --mixup 1 --strategies traditional,sb-memory": "mixup=1.0 with Memory(keep=0.33)",
    "compare --noise-guard --strategies traditional,sb-memory,sb": (
        "SelectiveLoader(..., keep=0.33) cannot have a noise guard"
    ),
    # what no strategy goes by
    "compare --strategies traditional,sb --tail 20%": "tail=0.2: plain training, SelectiveLoader(",
    "compare --strategies traditional,stale-sb --tail 20%": "tail=0.2: plain training, Stale(",
    "compare --strategies infobatch --floor 0.2": "floor=0.2: InfoBatch(ratio=0.67) would not go",
    "compare --strategies sb --decay 0.5": "decay=0.5: SelectiveLoader(..., keep=0.33) would not",
    "compare --rate steps:60e,120e:x0.1": "rate=steps:60e,120e:x0.1: plain training, Mem",
    "compare --history 16": "history=16: plain training, Memory() would not go by it",
    "compare --stale-every 2": "stale_every=2: plain training, Memory() would not go by it",
    "compare --score-models 3": "score_models=3: plain training, Memory() would not go by it",
    "compare --score-epochs 2": "score_epochs=2.0: plain training, Memory() would not go by it",
    "train --strategy el2n --warmup 2e": "warmup=Epochs(2): pruning.prune(",
    "train --strategy traditional --warmup 15%": "warmup=Share(0.15): plain training would",
    "train --strategy traditional --noise-guard": "noise_guard=True: plain training would not go",
    "sweep --grid floor=0.1,0.2 --strategies sb": "floor=0.2: SelectiveLoader(",
    # runs that could not be run, after others that could
    "compare --strategies sb --keep 0.05 --epochs 1 --warmup 0": "keeps about 72 examples",
    "compare --strategies sb --keep 0.05 --budget 0.1 --warmup 0": "keeps about 72 examples",
    "compare --strategies traditional,rs2 --keep 0.05 --epochs 1": "RS2(keep=0.05) keeps",
    "compare --strategies traditional,stale-sb-2 --keep 0.01 --epochs 2 --warmup 0": (
        "Stale(keep=0.01, every=2) keeps"
    ),
    "compare --strategies sb --epochs 1": "SelectiveLoader(..., keep=0.33): warmup=1e and tail=0% ",
    "compare --strategies traditional,sb-memory --keep 0.1": "Memory(keep=0.1): ",
    "compare --strategies sb,sb-memory --floor 0.5 --keep 0.6,0.4": "Memory(keep=0.4): ",
    "compare --strategies traditional,sb-single-pass --keep 0.01": "takes batches of 12800",
    "compare --strategies traditional,el2n --keep 0.01": (
        "pruning.prune(el2n(models, dataset), drop=0.99) takes batches of 128"
    ),
    "compare --strategies traditional,rho --batch-size 1000": "batch_size=1000 does not fit 718",
    "compare --strategies traditional,rho --score-epochs 0": "score_epochs=0: give epochs above 0",
    "compare --strategies traditional,el2n --budget 0.1": "el2n has a budget of 422 forwards",
    "compare --strategies traditional,el2n --cost-budget 9": "el2n has a budget of 9 forwards",
    # options besides
    "compare --threads 0": "--threads 0",
    "compare --threads=-1": "--threads -1",
    "compare --threads 1000000": "--threads 1000000",
    "compare --threads 99999999999999999999": "--threads 99999999999999999999",
    "compare --threads x": "'--threads'",
    "sweep --grid lr=0.1 --threads 1000000": "--threads 1000000",
    "probe --threads 1000000": "--threads 1000000",
    "score --threads 1000000": "--threads 1000000",
    "run fig5 --threads 1000000": "--threads 1000000",
    "compare --checkpoints 0": "--checkpoints 0",
    "compare --checkpoints x": "'--checkpoints'",
    "compare --checkpoint-every often": "--checkpoint-every 'often'",
    "compare --checkpoint-every ''": "--checkpoint-every ''",
    "compare --checkpoint-every 2": "--checkpoint-every 2",
    "compare --checkpoint-every=-1s": "--checkpoint-every '-1s'",
    "compare --checkpoint-every sm": "--checkpoint-every 'sm'",
    "compare --checkpoint-every 1e999": "--checkpoint-every '1e999'",
    "compare --checkpoint-every 0.1,0.2": "--checkpoint-every 0.1,0.2",
    "compare --overwrite --resume": "both --overwrite and --resume",
    "sweep --grid lr=0.1 --overwrite --resume": "both --overwrite and --resume",
    "run fig5 --overwrite --resume --dry-run": "both --overwrite and --resume",
    # places
    "compare --out {file}": "{file} cannot be written as a folder",
    "compare --out {file}/x": "{file}/x cannot be written as a folder",
    "train --out {file}": "{file} cannot be written as a folder",
    "sweep --grid lr=0.1,0.2 --out {file}": "{file}/lr0.1 cannot be written as a folder",
    "run {recipe} --out {file}": "cannot be written as a folder",
    "compare --out {damaged}": "{damaged} holds a comparison already",
    "compare --out {damaged} --resume": "{damaged}/summary.json is damaged",
    "train --out {damaged} --resume": "{damaged}/summary.json is damaged",
    "score --out {folder}": "{folder} is a folder",
    "score --out {file}/x.parquet": "{file}/x.parquet",
    "prune --scores {scores} --drop 0.1 --out {folder}": "{folder} is a folder",
    "prune --scores {scores} --drop 0.1 --out {file}/x": "{file}/x",
    "results {folder} --out {folder}": "{folder}",
    "results {folder} --out {file}/x.md": "{file}",
    "report {damaged} --out {file}": "{file}",
    # sweeps
    "sweep": "a sweep without a grid",
    "sweep --grid lr": "--grid 'lr'",
    "sweep --grid lr=": "--grid 'lr='",
    "sweep --grid =1": "no setting ''",
    "sweep --grid lr=0.1,0.1": "--grid 'lr=0.1,0.1'",
    "sweep --grid lr=0.1,1/10": "--grid 'lr=0.1,1/10'",
    "sweep --grid warmup=1e,1.0e": "--grid 'warmup=1e,1.0e'",
    "sweep --grid keep=0.5,50% --strategies sb": "--grid 'keep=0.5,50%'",
    "sweep --grid lr=0.1 --budget 2 --matched": "--matched: all runs of traditional,Memory() c",
    "sweep --grid lr=0.1 --strategies traditional --matched": "--matched: all runs of traditional",
    "sweep --grid lr=0.1 --grid lr=0.2": "--grid 'lr=0.2'",
    "sweep --grid lr=x": "lr 'x'",
    "sweep --grid lr=1e999": "lr '1e999'",
    "sweep --grid keep=x": "keep 'x'",
    "sweep --strategies sb --grid keep=2": "keep=2.0",
    "sweep --grid keep=0.5,0.25": "--keep 0.5: traditional, Memory() would not go by it",
    "sweep --grid seed=1,2": "no setting 'seed'",
    "sweep --grid evaluate-at=0.1": "evaluate_at is a list",
    "sweep --grid epochs=1 --budget 3": "epochs=1.0 and budget=3.0",
    "sweep --strategies sb --grid keep=0.5,0.05 --epochs 1 --warmup 0": "keeps about 72",
    "sweep --grid batch_size=64,5000": "batch_size=5000",
    "sweep --grid lr=0.1 --keep x": "--keep 'x'",
    "sweep --grid lr=0.1 --strategies nosuch": "no strategy 'nosuch'",
    # recipes
    "run nosuch": "no recipe 'nosuch'",
    "run {nowhere}.toml": "no file {nowhere}.toml",
    "run {folder}/x.toml": "no file {folder}/x.toml",
    "run {bad}": "{bad} is not TOML",
    "run {empty}": "{empty} says no title",
    "run fig5 --scale huge": "--scale huge",
    "run fig5 --set x": "--set x",
    "run fig5 --set nosuch=1": "no key 'nosuch'",
    "run fig5 --set lr=x": "lr 'x'",
    "run fig5 --set lr=0.1 --set lr=0.2": "--set lr: given more than once",
    "run fig5 --set keep=x": "keep 'x'",
    "run fig5 --set stale_every=5 --dry-run": "stale_every=5: plain training would not go by it",
    "run {recipe} --set floor=0.2": "floor=0.2: plain training would not go by it",
    "run fig5 --set keep=2 --dry-run": "keep=2.0",
    "run fig5 --set matched=maybe": "matched 'maybe'",
    "run fig5 --set strategies= --dry-run": "no strategy ''",
    "run fig5 --set epochs=1e999": "epochs '1e999'",
    "run fig5 --set width=0 --dry-run": "width=0",
    "run fig5 --set data=nosuch --dry-run": "'nosuch' is not known",
    "run fig5 --set evaluate_at=0.5,2 --dry-run": "evaluate_at=2.0",
    "run fig5 --seeds x": "'x'",
    "run fig5 --seeds=-1 --dry-run": "seed=-1",
    "run fig5 --seeds 1,1 --dry-run": "seeds [1, 1]",
    "compare --data fonts:x": "fonts:x: N=x",
    "run fig5 --only nosuch": "--only nosuch: no name begins so; there are fig5-small",
    "run table1 --only mnist,": "--only mnist,: no name begins so; there are cifar10, digits",
    "recipes --scale huge": "--scale huge",
    # probes
    "probe --keep x": "--keep 'x'",
    "probe --keep 2": "keep=[2.0]",
    "probe --keep 0.5,0.5": "keep=[0.5, 0.5]",
    "probe --keep 1e-9": "keep=[1e-09]: give shares in [0.001, 1)",
    "probe --seconds nan": "seconds=nan",
    "probe --seconds inf": "seconds=inf",
    "probe --seconds=-1": "seconds=-1",
    "probe --seconds x": "'--seconds'",
    "probe --batch-size 5000": "batch_size=5000",
    "probe --width 1000000": "cnn-1000000 needs",
    "probe --model nosuch": "'nosuch'",
    "probe --forecast --epochs 1": "--epochs 1 with --forecast, whose warm-up takes 1",
    "probe --forecast --keep 2 --epochs 8": "keep=[2.0]",
    "probe --forecast --seconds nan --epochs 8": "seconds=nan",
    # scores, and what is chosen by them
    "score --score nosuch": "'nosuch'",
    "score --models 0": "score_models=0",
    "score --models x": "'--models'",
    "score --epochs nan": "score_epochs=nan",
    "score --epochs=-1": "score_epochs=-1.0",
    "score --seed=-1": "seed=-1",
    "score --score forgetting --epochs 0": "score_epochs=0",
    "score --score irreducible --batch-size 1000": "batch_size=1000",
    "score --batch-size 5000": "batch_size=5000",
    "score --width 1000000": "cnn-1000000 needs",
    "overlap {nowhere} {nowhere}": "{nowhere} does not exist",
    "overlap {file} {file}": "{file} cannot be read",
    "overlap {scores}": "'second'",
    "overlap {foreign} {foreign}": "{foreign} does not say how it was made",
    "overlap {words} {words}": "column model_0 holds string",
    "overlap {scores} {scores} --drop x": "--drop 'x'",
    "overlap {scores} {scores} --drop 2": "drop=2.0",
    "prune --scores {nowhere} --drop 0.5": "{nowhere} does not exist",
    "prune --scores {junk} --drop 0.5": "{junk} cannot be read",
    "prune --scores {foreign} --drop 0.5": "{foreign} does not say how it was made",
    "prune --scores {kept} --drop 0.5": "{kept} holds no scores",
    "prune --scores {scores}": "drop=None and window=None",
    "prune --scores {scores} --drop 0.5 --out {scores}": "{scores} is the table of --scores",
    "prune --scores {scores} --drop 1": "drop=1.0",
    "prune --scores {scores} --drop nan": "--drop 'nan'",
    "prune --scores {scores} --drop x": "--drop 'x'",
    "prune --scores {scores} --drop 0.5 --window 0,1": "drop=0.5 and window=(0.0, 1.0)",
    "prune --scores {scores} --window 0": "--window 0: give two shares",
    "prune --scores {scores} --window x": "--window 'x'",
    "prune --scores {scores} --window 0.9,0.1": "window=(0.9, 0.1)",
    "prune --scores {scores} --window 0.1,0.2 --easiest": "--easiest and --window 0.1,0.2",
    "prune --scores {scores} --drop 0.5 --seed=-1": "seed=-1",
    "compare --subset {nowhere}": "{nowhere} does not exist",
    "compare --subset {folder}": "{folder} does not say how it was made",
    "compare --subset {file}": "{file} cannot be read",
    "compare --subset {foreign}": "{foreign} does not say how it was made",
    "compare --subset {scores}": "{scores} holds no subset",
    "compare --subset {kept} --train-limit 100": "{kept} was chosen from other training examples",
    "compare --subset {kept}": "{kept}: its indices are not",
    "compare --subset {fractions}": "{fractions}: its indices are not",
    # what reads records
    "suspects --run {nowhere}": "{nowhere} holds no run",
    "suspects --run {folder} --most x": "'--most'",
    "figures {nowhere}": "{nowhere} is not a folder",
    "figures {folder}": "{folder} holds no summary.json",
    "figures {damaged} --only nosuch": "no analysis nosuch",
    "report {nowhere}": "{nowhere} is not a folder",
    "report {folder}": "{folder} holds no summary.json",
    "results {nowhere}": "{nowhere} is not a folder",
    "results {file}": "{file} is not a folder",
    "models --width 0": "width=0",
    "models --width x": "'--width'",
    "models --width 99999999999999999999": "width=99999999999999999999",
    "models --channels 0": "channels=0",
    "models --classes=-5": "classes=-5",
}


def of_settings() -> dict[str, str]:
    """Command lines of one bad setting each, and what their error has to say."""
    found: dict[str, str] = {}

    def add(option: str, value: str, said: str) -> None:
        found[f"compare --{option}={shlex.quote(value)}"] = said

    for table, words in ((NUMBERS, WORDS), (INTEGERS, NO_INTEGERS)):
        for option, outside in table.items():
            name = option.replace("-", "_")
            for word in words:
                add(option, word, f"{name} {word!r}")
            for number in outside:
                add(option, number, f"{name}={number}")
    for option, words in WRITTEN.items():
        for word in words:
            add(option, word, f"{option.replace('-', '_')} {word!r}")
    for option in NAMES:
        for word in ("nosuch", "[red]", "0", "-1"):
            add(option, word, word)
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files and folders that command lines name."""
    root = tmp_path_factory.mktemp("places")
    (root / "folder").mkdir()
    (root / "damaged").mkdir()
    texts = {"file": "text", "junk": "PAR1junkPAR1", "bad": "a =", "empty": ""}
    texts["recipe"] = (
        'title = "t"\nsource = "s"\ndraw = ["fig6"]\n[small]\ndata = "digits"\nmodel = "cnn"\n'
        'epochs = 1\nstrategies = ["traditional"]\n'
    )
    texts["recipe"] += texts["recipe"].partition("[small]")[2].join(["[full]", ""])
    for name, text in texts.items():
        path = root / (f"{name}.toml" if name in ("bad", "empty", "recipe") else name)
        path.write_text(text)
    (root / "damaged" / "summary.json").write_text("{")
    arguments = {"data": "digits", "train_limit": None, "validation": None}
    made = {"examples": 1437, "scores": {"environment": {"arguments": arguments}}}
    tables = {
        "scores": ({"index": [0, 1], "label": [0, 1], "model_0": [0.5, 1.5]}, {}),
        "words": ({"index": [0, 1], "label": [0, 1], "model_0": ["a", "b"]}, {}),
        "kept": ({"index": [0, 5000]}, made),
        "fractions": ({"index": [0.5, 1.5]}, made),
        "foreign": ({"index": [0, 1]}, None),
    }
    for name, (columns, metadata) in tables.items():
        table = pa.table(columns)
        if metadata is not None:
            table = table.replace_schema_metadata({"siftback": json.dumps(metadata)})
        parquet.write_table(table, root / name)
    found = {name: str(root / name) for name in ("folder", "damaged", "nowhere", *tables)}
    found |= {name: str(root / name) for name in ("file", "junk")}
    return found | {name: str(root / f"{name}.toml") for name in ("bad", "empty", "recipe")}


EVERY = LINES | of_settings()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("line", "said"), EVERY.items(), ids=EVERY)
def test_a_bad_command_line_is_a_sentence(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: dict[str, str],
    line: str, said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)  # where it would write by default
    status, out, err = call(*shlex.split(line.format(**places)))
    assert status == 2, err
    _, sentence = re.split("[Ee]rror: ", err, maxsplit=1)
    assert said.format(**places) in sentence
    assert "Traceback" not in err
    assert not out
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing was begun"
