"""The page of a run in a real browser: from disk, without network, in light and dark, by keyboard, on a phone."""

import json
import re

import pytest

from dsa_verify.evidence import Heatmap, HeatmapRow, Result, Verdict
from dsa_verify.gates.report import html
from dsa_verify.profile.trace import save
from dsa_verify.report import history, parts
from dsa_verify.report.outcome import Outcome
from dsa_verify.report.page import page
from tests.gates.test_report import content_of
from tests.unit import chromium
from tests.unit.test_profile_command import profile, two_layers
from tests.unit.test_report_parts import BUDGETS, DOCUMENTS

pytestmark = pytest.mark.chromium

LAPTOP, PHONE = (1280, 800), (360, 740)
VIEWS = [(*LAPTOP, "light"), (*LAPTOP, "dark"), (*PHONE, "light"), (*PHONE, "dark")]
REASON = (
    "token 12 (request 2, position 162) keeps candidate 45 (score -76.3433) and leaves 103 (score 5.16754): 1.2e+05 "
)
REASON += "times the rounding band apart; 6 of 15 query tokens affected in request 2"
WIDEST = Heatmap("selection", "position", 8, 40, 64, tuple(
    HeatmapRow(1, 3000 + at, "=-+x." * 38 + "  ", "9 expected and missing") for at in range(16)
))  # fmt: skip


def result(surface, scenario, verdict):
    command = f"dsa-verify parity --provider mine:load --surface {surface} --scenario {scenario} --provider-path ."
    return Result("mine:load", surface, scenario, "selection", verdict, 1.0, command)


def run(verdict):
    places = [("index_topk", "several-unequal-p16-f32"), ("index_page_topk", "long-context-p128-bf16")]
    others = [result("sparse_mla_prefill_qblock", f"soak:0:{at}", Verdict.accepted(0.5)) for at in range(5)]
    return Outcome("dsa-verify parity", 1.0, {}, tuple(result(*place, verdict) for place in places) + tuple(others))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    bad = run(Verdict("rejected", REASON, 1.2e5, WIDEST))
    for one in (run(Verdict.accepted(0.25)), bad):
        history.append(folder / "history.db", one)
    for name, content in DOCUMENTS.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    found = [
        parts.mutants(folder / "mutants.json"), parts.compiles(folder / "compile.json", BUDGETS),
        parts.gate(folder / "gate.json"),
    ]  # fmt: skip
    (folder / "run.html").write_text(page(bad, folder / "history.db", found), "utf-8")
    return folder / "run.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = chromium.find()
    assert found is not None, f"no Chromium: put one on PATH, or its path into {chromium.VARIABLE}"
    one = chromium.Chromium(found, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.mark.parametrize("view", VIEWS)
def test_it_opens_from_disk_asks_for_nothing_and_complains_of_nothing(browser, report, view):
    browser.open(report, *view)
    assert browser.asked() == [report.as_uri()]
    assert browser.complaints() == []


def test_a_page_that_asks_or_complains_would_be_noticed(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<img src='missing.png'><script>console.error('no'); nowhere()</script>")
    browser.open(path, *LAPTOP, "light")
    assert (tmp_path / "missing.png").as_uri() in browser.asked()
    told = "".join(browser.complaints())
    assert "no" in told and "nowhere is not defined" in told


@pytest.mark.parametrize("view", VIEWS)
def test_the_first_screen_says_what_broke_where_since_when_and_how_to_repeat_it(browser, report, view):
    browser.open(report, *view)
    box, text = browser.value(
        "(one => [one.getBoundingClientRect().toJSON(), one.innerText])(document.querySelector('.broken'))"
    )
    assert 0 <= box["top"] < box["bottom"] <= view[1]
    for part in ("index_topk", "several-unequal-p16-f32: selection", "token 12 (request 2, position 162)"):
        assert part in text
    assert "rejected since run 2" in text and "last accepted in run 1" in text
    assert "dsa-verify parity --provider mine:load --surface index_topk" in text


def too_wide(browser, path, view) -> tuple[int, int]:
    """The width of a page with everything opened, and how many of its parts reach beyond the screen."""
    browser.open(path, *view)
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    beyond = (
        "[...document.querySelectorAll('p, h1, h2, h3, pre, dd, li, .wide, figcaption, svg.forest')]"
        ".filter(one => one.getBoundingClientRect().right > innerWidth + 1).length"
    )
    return browser.value("document.documentElement.scrollWidth"), browser.value(beyond)


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_the_screen(browser, report, view):
    width, beyond = too_wide(browser, report, view)
    assert width <= view[0]
    assert beyond == 0


@pytest.fixture(scope="module")
def other_pages(tmp_path_factory):
    """The pages of a gate and of a profile."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "gate.html").write_text(html(content_of(sparse=lambda key: "x " * 400)), "utf-8")
    save(two_layers(), folder / "trace.npz")
    found = profile("--trace", folder / "trace.npz", "--out", folder, "--block-sizes", "16")
    assert found.exit_code == 0, found.output
    return folder / "gate.html", folder / "index.html"


@pytest.mark.parametrize("view", VIEWS)
def test_the_pages_of_a_gate_and_of_a_profile_fit_the_screen_and_ask_for_nothing(browser, other_pages, view):
    for page_file in other_pages:
        width, beyond = too_wide(browser, page_file, view)
        assert width <= view[0], page_file.name
        assert beyond == 0, page_file.name
        assert [one for one in browser.asked() if not one.startswith("data:")] == [page_file.as_uri()]
        assert browser.complaints() == []


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_bars_and_links_stand_out_in_light_and_in_dark(browser, report, scheme):
    browser.open(report, *LAPTOP, scheme)
    paper = luminance(browser.value("getComputedStyle(document.querySelector('th[scope=row]')).backgroundColor"))
    assert (paper > 0.5) == (scheme == "light")
    for what, name in [("p", "color"), ("a", "color"), ("svg path", "fill"), ("svg text", "fill"), ("td", "color")]:
        ink = luminance(browser.value(f"getComputedStyle(document.querySelector('main {what}')).{name}"))
        contrast = (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05)
        assert contrast >= 4.5, f"{what} {contrast:.1f}"  # WCAG 2.2, 1.4.3, for text


@pytest.mark.parametrize("size", [LAPTOP, PHONE])
def test_heatmaps_are_there_whole_and_their_words_too(browser, report, size):
    browser.open(report, *size, "light")
    drawn = browser.value(
        "[...document.querySelectorAll('#case-0 svg')].map(one => { const bars = one.lastElementChild.parentNode"
        ".querySelector('path:not(.base)').getBBox(); return [one.clientWidth - bars.x - bars.width, "
        "one.clientHeight - bars.y - bars.height, bars.width, bars.height]; })"
    )
    assert len(drawn) == 3
    for right, below, width, height in drawn:
        assert right >= 0 and below >= 0 and width > 200 and height > 16 * 14
    assert browser.value("document.querySelectorAll('#case-0 details li').length") == 16


def test_it_works_by_keyboard(browser, report):
    browser.open(report, *LAPTOP, "light")
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.getAttribute('href')") == "#case-0"
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") != "none"
    browser.press("Enter", 13, "\r")
    assert browser.value("location.hash") == "#case-0"
    assert 0 <= browser.value("document.querySelector('#case-0').getBoundingClientRect().top") < 100
    for _ in range(60):
        if browser.value("document.activeElement.localName") == "summary":
            break
        browser.press("Tab", 9)
    browser.press("Enter", 13, "\r")
    assert browser.value("document.activeElement.parentNode.open") is True
    boxes = browser.value("[...document.querySelectorAll('.wide')].map(one => [one.tabIndex, one.ariaLabel])")
    assert boxes and all(index == 0 and label for index, label in boxes)
