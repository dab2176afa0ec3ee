"""Pages: each extends the one base with the one stylesheet, and says what to install without a template engine."""

import re

import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.errors import ConfigError
from dsa_verify.profile.trace import save
from dsa_verify.report import templates
from tests.repo.house import PACKAGE
from tests.unit.test_profile_command import two_layers

PAGES = ("report/page.html.j2", "gates/report.html.j2", "profile/page.html.j2")


@pytest.fixture
def no_engine(monkeypatch):
    monkeypatch.setattr(templates, "find_spec", lambda name: None)


def test_every_page_extends_the_base_and_brings_no_style_of_its_own():
    found = {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in PACKAGE.rglob("*.html.j2")}
    assert {name for name, text in found.items() if text.startswith('{% extends "base.html.j2" %}')} == set(PAGES)
    assert [name for name, text in found.items() if "<style>" in text] == ["report/base.html.j2"]
    assert [name for name, text in found.items() if "<!doctype" in text] == ["report/base.html.j2"]


def test_no_python_source_holds_a_page_or_a_style():
    sources = (path for path in PACKAGE.rglob("*.py") if "<style>" in path.read_text("utf-8"))
    assert list(sources) == []


def test_every_class_that_a_page_uses_is_in_the_stylesheet():
    style = (PACKAGE / "report" / "base.html.j2").read_text("utf-8").split("</style>")[0]
    for path in PACKAGE.rglob("*.html.j2"):
        for name in re.findall(r'class="([a-z]+)"', path.read_text("utf-8")):
            assert f".{name}" in style, f"{name} of {path.name}"


def test_a_page_without_the_engine_is_refused_with_what_to_install(no_engine):
    with pytest.raises(ConfigError, match="pip install jinja2"):
        templates.render("dsa_verify.report", "page.html.j2")


def test_a_profile_has_its_numbers_without_the_engine(no_engine, tmp_path):
    save(two_layers(), tmp_path / "trace.npz")
    given = ["profile", "--trace", str(tmp_path / "trace.npz"), "--out", str(tmp_path / "out"), "--block-sizes", "16"]
    found = CliRunner().invoke(main, [*given, "--no-plots"])
    assert found.exit_code == 0, found.output
    assert "wrote no page" in found.stderr and "dsa-verify[profile]" in found.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"profile.json", "layers.csv", "pages.csv", "blocks.csv"}
    found = CliRunner().invoke(main, given)
    assert found.exit_code == 2
    assert "pip install jinja2" in found.stderr
