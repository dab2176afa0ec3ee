"""The page of a run: whole in one file, without script or network, and every word of it is there as text."""

import json
import re
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.evidence import KnownFailure, Result, Verdict
from dsa_verify.report import history
from dsa_verify.report.outcome import Outcome
from dsa_verify.report.page import MOST, page

SCENARIO = "single-prefill-p16-f32"
REASON = (
    "out[9, 1, 40] is 0.2142, oracle -0.215627: token 9 (request 0, position 150), head 1 <script>alert(1)</script>"
)
REPRODUCE = f"dsa-verify parity --provider jnp --surface dense_mla --scenario {SCENARIO}"
ENTRY = KnownFailure("dense_mla/single-*/cache", "rounds twice", "one token")
VOID = {"meta", "link", "br", "hr", "img", "input"}


def result(verdict, check="parity", surface="dense_mla", scenario=SCENARIO, **more):
    return Result("jnp", surface, scenario, check, verdict, 0.25, REPRODUCE, **more)


def run(*results, **more):
    return Outcome("dsa-verify parity", 1.0, {"jax": "0.1", "providers": {"jnp": "0"}}, results, **more)


RUN = run(
    result(Verdict.rejected(REASON, 20000.0)),
    result(Verdict.rejected(REASON), "races"),
    result(Verdict.not_verified("known failure: rounds twice"), "cache", known=ENTRY, found="row 3 differs"),
    result(Verdict.not_verified("needs a SparseCore"), "traffic"),
    result(Verdict.accepted(0.4375), scenario="decode-one-d16-bf16"),
    stale=(KnownFailure("cache_write/*/cache", "gone", "one token"),),
)


class Read(HTMLParser):
    """Tags with their attributes, the text, and whether every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("one", [RUN, run(), run(result(Verdict.accepted()))])
def test_the_page_needs_nothing_outside_itself(one):
    text = page(one)
    read = Read(text)
    assert read.open == []
    assert not {"script", "link", "iframe", "object", "img", "form"} & {tag for tag, _ in read.tags}
    names = {name for _, attributes in read.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "srcset", "action", "xlink:href")}
    assert "@import" not in text
    assert "url(" not in text
    assert "://" not in text


OFF = Verdict.rejected("off")
LONG = run(*(result(OFF, scenario=f"soak:0:{index}") for index in range(MOST + 7)), result(OFF, surface="cache_write"))
"""More rejections than a page holds, and one of another surface beyond them."""


@pytest.mark.parametrize("one", [RUN, LONG, run()])
def test_every_link_stays_on_the_page_and_has_where_to_go(one):
    read = Read(page(one))
    links = [attributes["href"] for _, attributes in read.tags if "href" in attributes]
    ids = {f"#{attributes['id']}" for _, attributes in read.tags if "id" in attributes}
    assert ("#case-0" in links) == bool(one.counts["rejected"])
    assert set(links) <= ids


def test_the_first_lines_say_what_broke_where_since_when_and_how_to_repeat_it(tmp_path):
    text = page(RUN)
    top = Read(text[: text.index("<nav")]).text
    assert "jnp dense_mla: 1 of 2 scenarios rejected" in top
    assert f"{SCENARIO}: parity, races" in top
    assert "token 9 (request 0, position 150), head 1" in top
    assert "Since when" in top and "report html --history FILE tells it" in top
    assert REPRODUCE in top
    history.append(tmp_path / "history.db", RUN)
    text = page(RUN, tmp_path / "history.db")
    assert "rejected since run 1" in text[: text.index("<nav")]


def test_the_first_lines_have_the_most_rejected_surfaces_and_count_the_others():
    off = Verdict.rejected("x" * 50 + " " + "y" * 200)
    some = [result(off, surface=surface) for surface in ("cache_write", "index_topk", "indexer")]
    more = [result(off, scenario=f"single-extend-p{size}-f32") for size in (16, 64)]
    text = page(run(*some, *more))
    top = text[: text.index("<nav")]
    assert top.index("dense_mla: 2 of 2 scenarios") < top.index("cache_write: 1 of 1 scenarios")
    assert "indexer" not in top
    assert '1 more under <a href="#rejected">' in top
    assert (
        "x" * 50 + " ..." in top and "y" not in Read(top).text.replace("only", "").split("Where")[1].split("Since")[0]
    )
    assert "<section" not in page(run(result(Verdict.accepted())))


def test_it_follows_light_and_dark_and_names_no_colour_of_its_own():
    text = page(RUN)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "color-scheme: light dark" in style
    painted = re.findall(r"(?:background|color|fill|stroke)\s*:\s*([^;}]*)", style.replace("color-scheme:", ""))
    assert set(painted) == {"currentColor", "Canvas"}
    assert set(re.findall("#[0-9a-f]{3,8}", style)) == {"#8886"}  # a thin grey line, seen on white and on black


def test_it_fits_a_phone_because_whatever_is_wide_scrolls_in_its_own_box():
    text = page(RUN)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert text.count("<table") == text.count('<div class="wide"') == 2
    assert "overflow-x: auto" in text
    assert "pre { white-space: pre-wrap" in text
    assert "overflow-wrap: anywhere" in text


def test_a_rejection_has_coordinates_and_its_command_and_cannot_inject():
    text, read = page(RUN), Read(page(RUN))
    assert "<script>" not in text
    assert REASON in read.text
    assert REPRODUCE in read.text
    assert f"jnp dense_mla {SCENARIO}: parity, races" in read.text
    assert "stale known failure: cache_write/*/cache" in read.text


def test_the_matrix_says_verdicts_in_words_and_counts():
    read = Read(page(RUN))
    assert "0/2/2 2.0e+04rejected" in read.text
    assert "1/0/0 0.44" in read.text
    assert "1/2/2 2.0e+04rejected" in read.text


def test_what_was_not_verified_has_its_reason_and_known_failures_stand_apart():
    read = Read(page(RUN))
    assert "1 check: needs a SparseCore (jnp dense_mla)" in read.text
    assert (
        "1 check, dense_mla/single-*/cache: rounds twice. Smallest input: one token. Found: row 3 differs" in read.text
    )
    assert "1 check: known failure" not in read.text


def test_shares_name_the_scenario_and_are_drawn_at_most_full():
    text = page(RUN)
    assert "width: 100%" in text
    assert text.index(">2.0e+04<") < text.index('<h2 id="provenance">')
    assert "width: 43.8%" in page(run(result(Verdict.accepted(0.4375))))


def test_a_share_of_bytes_stands_apart_from_shares_of_error_budgets():
    text = page(run(result(Verdict.accepted(0.4375)), result(Verdict.accepted(1.0), "traffic")))
    read = Read(text)
    assert "2/0/0 0.44" in read.text
    budgets, _, rest = text.partition("<h3>Share of the bytes needed</h3>")
    assert "<td>parity</td>" in budgets and "<td>traffic</td>" not in budgets
    assert "<td>traffic</td>" in rest and "<td>parity</td>" not in rest


def test_known_failures_of_one_kind_stand_together():
    entries = [KnownFailure(f"dense_mla/{name}-*/cache", "rounds twice", "one token") for name in ("single", "decode")]
    forgiven = Verdict.not_verified("known failure: rounds twice")
    text = page(run(*(result(forgiven, "cache", known=entry, found="row 3 differs") for entry in entries)))
    assert text.count("<summary>2 checks (jnp dense_mla): rounds twice</summary>") == 1
    assert all(entry.id in text for entry in entries)


def test_since_when_is_told_from_the_history(tmp_path):
    path = tmp_path / "history.db"
    history.append(path, run(result(Verdict.accepted()), result(Verdict.accepted(), "races")))
    new = "new: the last run of the history does not reject it"
    assert new in page(RUN, path)
    history.append(path, RUN)
    text = page(RUN, path)
    assert "rejected since run 2" in text
    assert "last accepted in run 1" in text
    assert new not in text
    assert "rejected since" not in page(RUN)


def test_more_rejections_than_a_page_holds_are_counted():
    text = page(LONG)
    assert text.count('<section class="case"') == MOST
    assert "8 more are in the JSON document" in text


def test_the_command_writes_the_page_of_a_document(tmp_path):
    document, out = tmp_path / "run.json", tmp_path / "run.html"
    document.write_text(json.dumps(RUN.document()))
    found = CliRunner().invoke(main, ["report", "html", str(document), "-o", str(out)])
    assert (found.exit_code, found.stdout) == (0, ""), found.output
    assert out.read_text("utf-8") == page(RUN)
    found = CliRunner().invoke(main, ["report", "html", str(document), "-o", str(tmp_path / "no" / "run.html")])
    assert found.exit_code == 2
    assert "name another file" in found.stderr


def test_markdown_has_verdict_rejections_commands_and_reasons(tmp_path):
    document, path = tmp_path / "run.json", tmp_path / "history.db"
    document.write_text(json.dumps(RUN.document()))
    history.append(path, RUN)
    found = CliRunner().invoke(main, ["report", "markdown", str(document), "--history", str(path)])
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == "## dsa-verify parity: rejected"
    assert "| jnp | dense_mla | 1 | 2 | 2 |" in lines
    assert REASON in lines
    assert REPRODUCE in lines
    assert "- 1: needs a SparseCore (jnp dense_mla)" in lines
    assert "rejected since run 1" in found.stdout
    assert "stale known failure" in found.stdout


def test_parity_refuses_a_page_it_could_not_write_before_it_runs(tmp_path):
    arguments = ["parity", "--provider", "jnp", "--surface", "cache_write", "--scenario", SCENARIO, "--jobs", "1"]
    found = CliRunner().invoke(main, [*arguments, "--report", str(tmp_path / "no" / "run.html")])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "there is no folder" in found.stderr
    out = tmp_path / "run.html"
    found = CliRunner().invoke(main, [*arguments, "--report", str(out)])
    assert found.exit_code == 0, found.output
    assert "6 checks accepted" in out.read_text("utf-8")
