"""The numbers beside recipes of the guides are those of the records that scripts wrote."""

import json

import pytest

from scripts import ROOT, load_script

PAGES = {
    "initial_losses": "docs/language.md",
    "joint_selection": "docs/guides/contrastive.md",
    "noisy_losses": "docs/which_method.md",
    "regression": "docs/which_method.md",
    "tasks": "docs/which_method.md",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_s_table_is_that_of_the_record_of_three_seeds(name):
    module = load_script(f"benchmarks/guides/{name}.py")
    record = json.loads((ROOT / "results" / "guides" / f"{name}.json").read_text(encoding="utf-8"))
    assert {run["seed"] for run in record["runs"]} == {0, 1, 2}
    assert module.best_rates(record["runs"]) == record["rows"]
    assert "\n".join(module.table(record["rows"])) in (ROOT / PAGES[name]).read_text(
        encoding="utf-8"
    )
