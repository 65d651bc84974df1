"""The Chromium that pages are tested in, where there is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

INSTALL = (
    "no Chromium: install Debian's (apt-get install chromium) or Playwright's own "
    "(python -m playwright install --with-deps chromium), or name one in SIFTBACK_CHROMIUM"
)
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def started() -> Iterator[object]:
    """A browser that works; a test that asks for one is skipped where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason='no Playwright: pip install "siftback[dev]"'
    )
    with playwright.sync_playwright() as player:
        found = os.environ.get("SIFTBACK_CHROMIUM") or shutil.which("chromium")
        path = found or player.chromium.executable_path
        if not Path(path).exists():
            pytest.skip(INSTALL)
        browser = player.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def violations(page: object) -> list[str]:
    """Returns the rules of accessibility that a page breaks, as axe-core finds them."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason='no axe: pip install "siftback[dev]"'
    )
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:100]}: {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]
