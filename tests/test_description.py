"""What an index shows of the package."""

import doctest
import re
from pathlib import Path

import pytest

metadata = pytest.importorskip("hatchling.metadata.core", reason='pip install "siftback[dev]"')
ROOT = Path(__file__).parent.parent


def described():
    """The long description, as it is built."""
    from hatchling.plugin.manager import PluginManager

    project = metadata.ProjectMetadata(str(ROOT), PluginManager())
    assert project.core.readme_content_type == "text/markdown"
    return project.core.readme, project.version


def test_links_lead_into_the_repository_where_its_address_is_known(monkeypatch):
    monkeypatch.setenv("REPOSITORY_URL", "https://host/name")
    text, version = described()
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [target for target in targets if not target.startswith("https://")] == []
    of_repository = [target for target in targets if target.startswith("https://host/name/")]
    assert f"https://host/name/raw/v{version}/docs/saved.svg" in of_repository
    for target in of_repository:
        assert (ROOT / target.partition(f"/v{version}/")[2]).exists(), target


def test_without_an_address_it_is_the_readme(monkeypatch):
    monkeypatch.delenv("REPOSITORY_URL", raising=False)
    assert described()[0] == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_the_hook_holds(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    import hatch_build

    found = doctest.testmod(hatch_build)
    assert found.attempted
    assert not found.failed
