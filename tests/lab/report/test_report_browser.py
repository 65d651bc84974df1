"""The report in a real browser, made from real runs."""

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

from chromium import started, violations
from siftback import cli

pytestmark = pytest.mark.browser

WIDTHS = (360, 800, 1400)
FIGURE = "#fig7"
TIMEOUT = 180_000  # milliseconds; a page is there in one or two seconds, if nothing else runs


@pytest.fixture(scope="module")
def browser():
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def report(browser, filled_once):
    """The report of a comparison on the digits, one of its records torn; needs the browser first,
    so that nothing is trained where there is none.
    """
    return filled_once("opened", write) / "report" / "index.html"


def write(folder):
    asked = "--data digits --model mlp --epochs 2 --seed 0,1 --strategies traditional,sb --keep 1/2"
    more = ("--device", "cpu", "--observe", "losses", "--out", folder / "digits")
    siftback("compare", *asked.split(), *more)
    (folder / "digits" / "records" / "torn.jsonl").write_text('{"kind": "run"')
    told = siftback("report", folder / "digits", "--out", folder / "report")
    assert "torn.jsonl was broken off" in told


def siftback(*arguments):
    """Calls the command line; gives what it prints as errors."""
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(told):
        patch.setattr(sys, "argv", ["siftback", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code, told.getvalue()
    return " ".join(told.getvalue().split())


@pytest.fixture
def opened(browser, report):
    """The page, opened; whatever it complains of or asks for is an error in the end."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    complaints = []
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url))
    page.goto(report.as_uri())
    drawn(page, FIGURE)
    yield page
    context.close()
    own = (report.as_uri(), "data:", "blob:")
    foreign = [said for said in complaints if not said.startswith(own)]
    assert foreign == []


def drawn(page, figure):
    """Opens a figure and scrolls to it, as those that nobody sees are not drawn."""
    page.locator(f"{figure} > .fold").evaluate("fold => { fold.open = true; }")
    page.locator(figure).scroll_into_view_if_needed()
    page.locator(f"{figure} .main-svg").first.wait_for()


def draw_all(page):
    for figure in page.locator("[data-figure]").all():
        drawn(page, f"#{figure.get_attribute('id')}")


def lines(page, figure=FIGURE):
    """The names of what a figure shows."""
    shown = page.locator(f"{figure} .chart").first.evaluate(
        "chart => chart.data.filter(trace => trace.name).map(trace => trace.name)"
    )
    return [name for name in shown if name]


def test_it_reads_from_top_to_end_without_a_complaint(opened):
    draw_all(opened)
    assert opened.locator("h1").inner_text() == "Selective training on digits"
    assert "at the same budget" in opened.locator(".headline").inner_text()
    assert "torn.jsonl was broken off" in opened.locator("#damaged").inner_text()
    assert opened.locator("#table1 tbody tr").count() >= 1
    pictures = opened.locator("#choices img")
    assert pictures.count() == 36  # kept most, dropped most, suspect
    assert all(each.evaluate("image => image.naturalWidth") == 8 for each in pictures.all()[:3])


def test_one_comparison_is_short_and_a_link_opens_what_it_leads_to(opened, report):
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.reload()
    drawn(opened, FIGURE)
    assert opened.evaluate("() => document.documentElement.scrollHeight") <= 4200
    folded = opened.locator("#agreement > .fold, #fig6 > .fold").first
    assert folded.get_attribute("open") is None
    opened.get_by_text("Contents").click()
    opened.locator(".sheet a[href='#fig6']").click()
    opened.locator("#fig6 .main-svg").first.wait_for()


def test_the_axis_of_differences_has_zero_in_view(opened):
    drawn(opened, "#budget")
    least, most = opened.locator("#budget .chart").first.evaluate("it => it.layout.xaxis.range")
    assert least <= 0 <= most


def test_the_x_axis_is_switched(opened):
    chart = opened.locator(f"{FIGURE} .chart").first
    seen = {}
    for view in ("time", "steps", "cost"):
        opened.locator(f"{FIGURE} .views input[value={view}]").check()
        title = chart.locator(".xtitle").text_content()
        last = chart.evaluate("chart => Math.max(...chart.data.flatMap(trace => trace.x))")
        seen[view] = title, last
    assert [title.split()[0] for title, _ in seen.values()] == ["training", "optimizer", "cost"]
    assert seen["steps"][1] == 22  # 11 batches of 128 digits an epoch
    assert seen["cost"][1] == 3 * 22 * 128


def test_strategies_are_hidden_and_shown(opened):
    everything, name = lines(opened), "SelectiveLoader(..., keep=0.5)"
    assert {"plain training", name, f"matched to {name}"} <= set(everything)
    entry = opened.locator(f"{FIGURE} .legend button", has_text=re.compile(f"^{re.escape(name)}$"))
    entry.click()
    assert set(everything) - set(lines(opened)) == {name}
    assert entry.get_attribute("aria-pressed") == "false"
    assert entry.evaluate("button => button === document.activeElement")
    entry.press("Enter")
    assert lines(opened) == everything

    opened.get_by_text("Strategies shown").click()
    opened.locator("#strategies").get_by_label("SelectiveLoader(..., keep=s)", exact=True).uncheck()
    assert set(everything) - set(lines(opened)) == {name}
    opened.get_by_role("button", name="Hide all").click()
    assert lines(opened) == []
    opened.get_by_role("button", name="Show all").click()
    assert lines(opened) == everything


def test_colours_follow_the_system_and_the_switch(opened):
    def colours():
        ground = opened.evaluate("() => getComputedStyle(document.body).backgroundColor")
        text = opened.locator(f"{FIGURE} .chart").first.evaluate("chart => chart.layout.font.color")
        return lightness(ground), lightness(text)

    def becomes(condition):
        """The colours, once the chart is drawn again with them; at last, as they are."""
        for _ in range(100):
            if condition(colours()):
                break
            opened.wait_for_timeout(100)
        return colours()

    light = becomes(lambda found: found[0] > 200 > 60 > found[1])
    assert light[0] > 200 > 60 > light[1]
    opened.emulate_media(color_scheme="dark")
    dark = becomes(lambda found: found[0] < 60 < 200 < found[1])
    assert dark[0] < 60 < 200 < dark[1]
    opened.locator("#theme input[value=light]").check()
    assert becomes(lambda found: found == light) == light
    opened.locator("#theme input[value=dark]").check()
    opened.emulate_media(color_scheme="light")
    assert becomes(lambda found: found == dark) == dark
    opened.reload()
    drawn(opened, FIGURE)
    assert becomes(lambda found: found == dark) == dark, "the choice is kept"


def lightness(colour):
    parts = [float(part) for part in re.findall(r"[\d.]+", colour)[:3]]
    return sum(parts) / 3


def test_values_are_shown_where_one_points(opened):
    point = opened.locator(f"{FIGURE} .chart .points path").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    label = opened.locator(f"{FIGURE} .hoverlayer .hovertext").first
    label.wait_for()
    name = label.text_content()
    assert any(name.startswith(each) for each in lines(opened))
    assert re.search(r"\d", name)


def test_numbers_are_a_table_and_a_file(opened):
    opened.locator(f"{FIGURE} .numbers summary").click()
    rows = opened.locator(f"{FIGURE} .numbers tbody tr")
    rows.first.wait_for()  # it is filled once it is open
    assert rows.count() == 2 * len(lines(opened))  # two epochs
    with opened.expect_download() as download:
        opened.locator(f"{FIGURE} figcaption a", has_text="CSV").click()
    carried = Path(download.value.path()).read_bytes()
    beside = Path(opened.url.removeprefix("file://")).parent / "figures" / "fig7.csv"
    assert carried == beside.read_bytes()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.sampled(4)
def test_it_fits_every_width(opened, tmp_path, width):
    opened.set_viewport_size({"width": width, "height": 900})
    draw_all(opened)
    widest = opened.evaluate("() => document.documentElement.scrollWidth")
    assert widest <= width, "the page scrolls sideways"
    for chart in opened.locator(".chart").all():
        assert chart.bounding_box()["width"] <= width
        drawn = chart.locator(".main-svg").first.bounding_box()
        assert drawn["width"] <= chart.bounding_box()["width"] + 1
    picture = opened.screenshot(path=tmp_path / f"{width}.png", full_page=True)
    assert len(picture) > 50_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.sampled(5)
def test_axe_finds_nothing_with_all_of_it_open(opened, scheme, width):
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": width, "height": 900})
    draw_all(opened)
    assert violations(opened) == []


def test_on_paper_it_is_whole_and_light(opened, tmp_path):
    opened.emulate_media(color_scheme="dark")
    opened.emulate_media(media="print", color_scheme="dark")
    opened.wait_for_function(
        "() => [...document.querySelectorAll('[data-figure]')]"
        ".every(figure => figure.querySelector('.main-svg'))"
    )
    text = opened.locator(f"{FIGURE} .chart").first.evaluate("chart => chart.layout.font.color")
    assert lightness(text) < 60
    assert not opened.locator(".bar").is_visible()
    assert opened.locator("details.printed").first.get_attribute("open") is not None
    opened.emulate_media(media="screen", color_scheme="dark")
    opened.wait_for_function(
        "figure => document.querySelector(`${figure} .chart`).layout.font.color.includes('23')",
        arg=FIGURE,
    )


def test_what_was_never_scrolled_to_is_printed_too(opened, tmp_path):
    pages = []
    for name in ("first.pdf", "again.pdf"):
        paper = opened.pdf(path=tmp_path / name, format="A4")
        pages.append(len(re.findall(rb"/Type\s*/Page\b", paper)))
    assert pages[0] == pages[1] > len(opened.locator("[data-figure]").all()) / 2


def test_without_scripts_the_numbers_are_there(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("noscript p").is_visible()
    assert page.locator("#verdicts").is_visible()
    assert not page.locator("#theme").is_visible()
    context.close()
