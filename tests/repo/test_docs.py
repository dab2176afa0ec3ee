"""The docs: a README of one screen, links that lead somewhere, tables that are whole, examples that run."""

import doctest
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import CHECKS
from dsa_verify.cli import main
from dsa_verify.contract import SURFACES, Promise
from dsa_verify.errors import Exit
from dsa_verify.kernels.providers import BUILT_IN, ENTRY_POINTS, load_provider
from dsa_verify.run import known_failures
from dsa_verify.run.known_failures import KnownFailure

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "tests/README.md", ROOT / "golden/README.md"]
README = (ROOT / "README.md").read_text("utf-8")
VOCABULARY = (DOCS / "vocabulary.md").read_text("utf-8")
PROVIDERS = (DOCS / "providers.md").read_text("utf-8")
LINES = 130


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(text: str) -> list[str]:
    """Targets of links and pictures, without those in code."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its headings as a page of Markdown shows them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Links to a file, or to a heading of one, that is not there."""
    found = []
    for link in links(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def rows(text: str, heading: str) -> list[str]:
    """The first cells of a table whose first heading this is."""
    table = text[text.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [line.split("|")[1].strip(" `") for line in table]


def code_of(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_readme_has_one_screen():
    assert len(README.splitlines()) <= LINES


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


def test_a_broken_link_would_be_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One\n[here](#one) [gone](absent.md) [no](page.md#two) `[code](x)` [far](https://example.org)")
    assert broken_links(page) == ["absent.md", "page.md#two"]


def test_readme_leads_to_every_page():
    pages = {f"docs/{page.name}" for page in DOCS.glob("*.md")}
    assert pages - {link.partition("#")[0] for link in links(README)} == set()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_files_that_are_named_are_there(page):
    named = re.findall(r"`((?:dsa_verify|tests|tools|golden|docs)/[\w./-]+)`", page.read_text("utf-8"))
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_tables_of_the_readme_are_whole():
    assert rows(README, "surface") == list(SURFACES)
    named = rows(README, "check")
    assert [check for check in CHECKS if check not in named and not check.startswith("invariance:")] == []
    assert set(named) - set(CHECKS) == {"invariance:*", "sharding"}
    assert [int(code) for code in rows(README, "code")] == sorted({code.value for code in Exit} - {Exit.INTERRUPTED})


def test_kernel_of_the_readme_has_eight_lines():
    (kernel,) = code_of(README, "python")
    assert len([line for line in kernel.splitlines() if line.strip()]) == 8


@pytest.mark.parametrize("broken", [False, True])
def test_kernel_of_the_readme_is_accepted_and_a_fault_in_it_rejected(tmp_path, monkeypatch, broken):
    (kernel,) = code_of(README, "python")
    module = f"readme_{'broken' if broken else 'kernel'}"
    (tmp_path / f"{module}.py").write_text(
        kernel.replace("out_cache_loc < 0", "out_cache_loc < -1") if broken else kernel
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = ["--surface", "cache_write", "--scenario", "table-reversed-p16-f32", "--jobs", "1"]
    found = CliRunner().invoke(main, ["parity", "--provider", f"{module}:mine", *chosen])
    assert found.exit_code == broken, found.output


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_the_options_that_are_shown(page):
    for line in re.findall(r"^(?:\.venv/bin/)?dsa-verify (.*)$", page.read_text("utf-8"), re.MULTILINE):
        words = re.split(r" [#>|&] ?|;", line)[0].split()
        names = [word for word in words[:2] if re.fullmatch("[a-z]+", word)]
        names = names if CliRunner().invoke(main, [*names, "--help"]).exit_code == 0 else names[:1]
        text = CliRunner().invoke(main, [*names, "--help"]).stdout
        assert text.startswith("Usage"), line
        assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in text] == [], line


def test_numbers_of_the_vocabulary_are_those_of_the_code():
    found = doctest.testfile(str(DOCS / "vocabulary.md"), module_relative=False)
    assert found.attempted >= 12
    assert found.failed == 0


def test_vocabulary_has_every_name_of_the_contract():
    names = {name for surface in SURFACES.values() for name in (*surface.arrays, *surface.statics, *surface.outputs)}
    axes = {axis for surface in SURFACES.values() for dims in surface.arrays.values() for axis in dims}
    axes -= {"seqs+1", "hidden_size", "q_lora_rank", "index_heads_width"}  # these stand in shapes only
    assert [name for name in sorted(names | axes) if f"`{name}`" not in VOCABULARY] == []


def test_every_field_of_a_promise_is_explained_with_its_default():
    assert rows(PROVIDERS, "field") == [field.name for field in fields(Promise)]
    for field in fields(Promise):
        default = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
        assert f"| `{field.name}` | `{default}` |" in PROVIDERS


def test_every_key_of_a_known_failure_is_explained():
    assert set(rows(PROVIDERS, "key")) == {field.name for field in fields(KnownFailure)}


def test_known_failures_that_are_shown_parse():
    points, entries = code_of(PROVIDERS, "toml")
    assert f'"{ENTRY_POINTS}"' in points
    parsed = known_failures.parse(entries, "providers.md")
    assert len(parsed) == 3
    assert {entry.provider for entry in parsed} == {"my_kernels:load"}


def test_every_shipped_provider_is_listed():
    assert rows(PROVIDERS, "name") == list(BUILT_IN)


@pytest.mark.parametrize(
    ("scenario", "code"),
    [("several-zero-length-p16-f32", Exit.ACCEPTED), ("several-unequal-p16-f32", Exit.NOTHING_VERIFIED)],
)
def test_provider_that_is_shown_runs_within_its_limits(tmp_path, monkeypatch, scenario, code):
    (source,) = code_of(PROVIDERS, "python")
    (tmp_path / "shown_provider.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = load_provider("shown_provider:load").kernels["dense_mla"]
    reason = kernel.limits(SCENARIOS[scenario].build())
    assert (reason is None) == (code == Exit.ACCEPTED)
    chosen = ["--surface", "dense_mla", "--scenario", scenario, "--jobs", "1"]
    found = CliRunner().invoke(main, ["parity", "--provider", "shown_provider:load", *chosen])
    assert found.exit_code == code, found.output
    assert (reason or "accepted") in " ".join(found.stdout.split())


def test_every_folder_of_tests_is_described():
    text = (ROOT / "tests" / "README.md").read_text("utf-8")
    folders = {f"{path.name}/" for path in (ROOT / "tests").iterdir() if any(path.glob("*.py"))}
    assert set(rows(text, "folder")) == folders


def test_changelog_begins_with_what_is_unreleased_and_with_this_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    check = "import dsa_verify; print(dsa_verify.__version__)"
    version = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version.strip())} - \d{{4}}-\d\d-\d\d", headings[1])
