"""The documentation's site, built as `make docs` builds it and read in a real browser."""

import ast
import http.server
import json
import os
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from xml.etree import ElementTree

import pytest

import siftback
import siftback.contrib
import siftback.errors
import siftback.language
import siftback.pruning
from chromium import started, violations

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1/siftback/"
WIDTHS = (1280, 390)
KINDS_OF_PAGE = (
    *("", "which_method/", "questions/", "guides/plain_loop/", "methods/", "results/"),
    *("api/single_pass/", "front_doors/"),
)
TIMEOUT = 120_000  # milliseconds; a page is there in less than one second, if nothing else runs


@pytest.fixture(scope="module")
def site(filled_once):
    """The folder that it was built in; a warning is an error."""

    def build(folder):
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
        built = subprocess.run(
            [*command, folder / "siftback"],
            cwd=ROOT,
            env=os.environ | {"SITE_URL": ADDRESS, "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert built.returncode == 0, built.stderr

    return filled_once("docs", build) / "siftback"


@pytest.fixture(scope="module")
def addresses(site):
    """Of all pages, as the sitemap has them."""
    pages = [entry[0].text for entry in ElementTree.parse(site / "sitemap.xml").getroot()]
    assert ADDRESS in pages
    assert len(pages) == len(list((ROOT / "docs").rglob("*.md")))
    return pages


class Page(HTMLParser):
    """The links of a page, and what they can lead to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        self.anchors.add(of.get("id"))
        self.links += [of[name] for name in ("href", "src") if of.get(name)]


def file_of(site, address):
    path = site / unquote(urlsplit(address).path).removeprefix("/siftback/")
    return path / "index.html" if path.is_dir() else path


def test_every_link_leads_to_a_file_and_a_heading(site, addresses):
    pages = {
        file_of(site, address): (address, Page(file_of(site, address).read_text("utf-8")))
        for address in addresses
    }
    broken = []
    for address, page in pages.values():
        for link in page.links:
            target, anchor = urldefrag(urljoin(address, link))
            if not target.startswith(ADDRESS):
                continue
            path = file_of(site, target)
            if not path.is_file() or (
                anchor and path in pages and unquote(anchor) not in pages[path][1].anchors
            ):
                broken.append((address, link))
    assert broken == []


def test_nothing_of_another_host_is_loaded(site, addresses):
    for address in addresses:
        text = file_of(site, address).read_text("utf-8")
        assert 'src="http' not in text
        assert 'rel="stylesheet" href="http' not in text


def public_names():
    for module in (siftback, siftback.language, siftback.pruning, siftback.contrib):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)
    for name, error in vars(siftback.errors).items():
        if isinstance(error, type):
            yield f"siftback.errors.{name}"
    for name in ("accelerate", "huggingface", "keras", "lightning"):
        source = ROOT / "src" / "siftback" / "frameworks" / f"{name}.py"
        yield from (f"siftback.frameworks.{name}.{each}" for each in names_in(source))


def names_in(source):
    """The public names of a module, or else its classes and functions without an underscore."""
    body = ast.parse(source.read_text(encoding="utf-8")).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    found = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [name for name in found if not name.startswith("_")]


def test_every_public_name_is_in_the_reference(site):
    import mkdocstrings

    with (site / "objects.inv").open("rb") as file:
        inventory = mkdocstrings.Inventory.parse_sphinx(file)
    described = {name for name, item in inventory.items() if item.role in ("class", "function")}
    for name in public_names():
        within = f"{name}.{name.rpartition('.')[2]}"  # a module of its own name
        assert name in described or within in described, name


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def served(site):
    """Where the site is served, at the address that it was built for but for the port."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=site.parent)
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    with started() as found:
        yield found


@pytest.fixture
def page(browser, served):
    """A page; whatever it complains of or asks of others is an error in the end."""
    context = browser.new_context(reduced_motion="reduce")  # resized without a transition
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    complaints, asked = [], []
    page.on("console", lambda said: complaints.append((page.url, said.text)))
    page.on("pageerror", lambda error: complaints.append((page.url, str(error))))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith((f"{served}/", "data:", "blob:"))] == []


@pytest.mark.browser
@pytest.mark.parametrize("part", range(3))
@pytest.mark.sampled(3)
def test_no_page_scrolls_sideways(page, served, site, addresses, part):
    # The search has a test of its own; to index all words again on each page takes half a minute.
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    first = index | {"docs": index["docs"][:1]}
    page.route("**/search_index.json", lambda route: route.fulfill(json=first))
    wide = []
    for address in addresses[part::3]:
        page.goto(served + urlsplit(address).path)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 300})
            widest = page.evaluate("document.documentElement.scrollWidth")
            if widest > width:
                wide.append((address, width, widest))
    assert wide == []


@pytest.mark.browser
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.sampled(5)
def test_axe_finds_nothing_on_each_kind_of_page(page, served, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    found = []
    for path in KINDS_OF_PAGE:
        page.goto(served + urlsplit(ADDRESS).path + path)
        page.locator(".md-search[aria-label]").wait_for(state="attached")
        found += [(path, violation) for violation in violations(page)]
    assert found == []


@pytest.mark.browser
def test_no_table_is_cut_on_a_desk_and_where_it_scrolls_the_keyboard_does_it(page, served):
    tables = page.locator(".md-typeset__scrollwrap")
    for path in KINDS_OF_PAGE:
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(served + urlsplit(ADDRESS).path + path)
        page.locator(".md-search[aria-label]").wait_for(state="attached")
        wide = "wraps => wraps.filter(w => w.scrollWidth > w.clientWidth + 1).length"
        assert tables.evaluate_all(wide) == 0, path
    page.goto(served + urlsplit(ADDRESS).path + "results/")
    page.set_viewport_size({"width": 390, "height": 900})
    scrolling = page.locator(".md-typeset__scrollwrap.scrolls[role=region][tabindex='0']").first
    scrolling.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")


@pytest.mark.browser
@pytest.mark.parametrize("width", WIDTHS)
def test_search_finds_the_page_of_a_method(page, served, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(served + urlsplit(ADDRESS).path)
    if width < 900:  # behind a button
        page.locator("label[for=__search]").first.click()
    page.locator(".md-search__input").click()
    page.keyboard.type("InfoBatch")
    found = page.locator(".md-search-result__link")
    found.first.wait_for()
    links = [urlsplit(link.get_attribute("href")).path for link in found.all()]
    assert any(link.endswith("/methods/") for link in links)
    assert any(link.endswith("/api/rules/") for link in links)
