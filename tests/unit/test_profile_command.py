"""`dsa-verify profile`: files and stdout say the same, refusals are one line, pictures and page are whole."""

import csv
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.commands import profile as profile_command
from dsa_verify.profile import prefill
from dsa_verify.profile.trace import Trace, save
from tests.unit.planted_selections import planted, selections, source, trace

ROW = {
    "layer", "block_size", "mean_intersection", "mean_union", "sinks", "strides", "local_window", "pages_per_query",
    "pages_per_block",
}  # fmt: skip


def two_layers():
    first, second = planted(400, 64, sinks=[3, 9], window=20), planted(400, 64, window=12, distances=range(30, 380, 32))
    return Trace(source(464, 40), {7: selections(second, 400, 40), 0: selections(first, 400, 40)})


@pytest.fixture
def recorded(tmp_path):
    save(two_layers(), tmp_path / "trace.npz")
    return tmp_path / "trace.npz"


def profile(*arguments, **options):
    return CliRunner().invoke(main, ["profile", *map(str, arguments)], **options)


def test_json_is_one_document_with_the_promised_rows(recorded, tmp_path):
    result = profile("--trace", recorded, "--out", tmp_path / "out", "--no-plots", "--json", "--block-sizes", "16,32")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {"schema", "command", "seconds", "provenance", "layers"} <= set(document)
    assert document["schema"] == 1
    assert document["command"].startswith("dsa-verify")
    assert document["provenance"]["source"]["text"] == "planted by construction"
    assert [(row["layer"], row["block_size"]) for row in document["layers"]] == [(0, 16), (0, 32), (7, 16), (7, 32)]
    assert all(set(row) >= ROW for row in document["layers"])
    first = document["layers"][0]
    assert first["mean_intersection"] == 2 + 20 - 15
    assert first["mean_union"] == 2 + 20 + 15
    assert (first["sinks"], first["local_window"], first["strides"]) == (2, 20, [])
    (stride,) = document["layers"][2]["strides"]
    assert (stride["period"], stride["offset"]) == (32, 30)
    assert json.loads((tmp_path / "out" / "profile.json").read_text("utf-8")) == document
    assert result.stderr == ""


def test_tables_on_disk_hold_the_same_numbers(recorded, tmp_path):
    out = tmp_path / "out"
    result = profile("--trace", recorded, "--out", out, "--no-plots", "--json", "--block-sizes", "16,32")
    document = json.loads(result.stdout)
    with (out / "layers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mean_union"]) for row in rows] == [row["mean_union"] for row in document["layers"]]
    assert [json.loads(row["strides"]) for row in rows] == [row["strides"] for row in document["layers"]]
    with (out / "blocks.csv").open(encoding="utf-8", newline="") as file:
        blocks = [row for row in csv.DictReader(file) if (row["layer"], row["block_size"]) == ("0", "32")]
    assert [row["first_position"] for row in blocks] == ["400", "432"]
    assert [row["intersection"] for row in blocks] == ["2", "2"]
    with (out / "pages.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 2 * 2 * 3


def test_a_reader_gets_a_table_and_a_sentence_a_layer(recorded, tmp_path):
    out = tmp_path / "out"
    result = profile("--trace", recorded, "--out", out, "--no-plots", "--block-sizes", "16,128")
    assert result.exit_code == 0, result.output
    assert (
        "layer 0: of 22 positions a query, 91% in a local window of 20, 9% in 2 sinks, strides: none" in result.stdout
    )
    assert "strides: every 32 tokens (" in result.stdout
    assert f"profile: 5 files in {out}" in result.stdout
    assert "left out block sizes 128" in result.stderr


def test_layers_window_and_page_size_are_taken_from_the_options(recorded, tmp_path):
    document = json.loads(
        profile(
            *("--trace", recorded, "--out", tmp_path / "out", "--no-plots", "--json", "--layers", "7"),
            *("--block-sizes", "16,8,8", "--queries", "40", "--page-size", "32"),
        ).stdout
    )
    assert [(row["layer"], row["block_size"], row["blocks"]) for row in document["layers"]] == [(7, 8, 5), (7, 16, 2)]
    assert (document["queries"], document["page_size"]) == (40, 32)
    assert document["patterns"][0]["first_position"] == 424
    assert {row["page_size"] for row in document["bytes"]} == {32}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either FILEs to read or --trace FILE.npz"),
        (["novel.txt", "--trace", "TRACE"], "give either FILEs to read or --trace FILE.npz"),
        (["novel.txt"], "cannot read novel.txt"),
        (["--trace", "TRACE", "--model", "."], "--model reads FILEs"),
        (["--trace", "nowhere.npz"], "there is no trace nowhere.npz"),
        (["--trace", "TRACE", "--layers", "1"], "layer 1 is not in it; it holds 0, 7"),
        (["--trace", "TRACE", "--block-sizes", "128"], "no block size fits: the window has 64 queries"),
        (["--trace", "TRACE", "--block-sizes", "16,x"], "'16,x' is no list of whole numbers from 1 up"),
        (["--trace", "TRACE", "--block-sizes", "0"], "'0' is no list of whole numbers from 1 up"),
        (["--trace", "TRACE", "--layers", "-1"], "'-1' is no list of whole numbers from 0 up"),
        (["--trace", "TRACE", "--queries", "0"], "0 is not in the range"),
        (["--trace", "TRACE", "--out", "TRACE/out"], "cannot write to"),
    ],
)
def test_refusals_exit_2_and_say_what_to_do(recorded, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = profile(*(argument.replace("TRACE", str(recorded)) for argument in arguments))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_files_are_read_by_the_model_through_the_seam(tmp_path, monkeypatch):
    asked = []

    def trace_of(files, model_dir, settings, tell):
        asked.append((files, model_dir, settings))
        return two_layers()

    monkeypatch.setattr(prefill, "trace_of", trace_of)
    result = profile("a.txt", "b.txt", "--model", tmp_path, "--layers", "7,0", "--out", tmp_path / "out", "--no-plots")
    assert result.exit_code == 0, result.output
    ((files, model_dir, settings),) = asked
    assert [file.name for file in files] == ["a.txt", "b.txt"]
    assert model_dir == tmp_path
    assert settings == prefill.PrefillSettings(layers=(0, 7), queries=2048, page_size=64)


def prefilling(tmp_path, monkeypatch, **options):
    """`profile` of a text whose prefill has three blocks."""

    def trace_of(files, model_dir, settings, tell):
        for block in range(1, 4):
            tell(block, 3)
        return two_layers()

    monkeypatch.setattr(prefill, "trace_of", trace_of)
    return profile("a.txt", "--out", tmp_path / "out", "--no-plots", "--block-sizes", "16", **options)


def test_prefill_tells_how_far_it_is_in_lines_where_there_is_no_terminal(tmp_path, monkeypatch):
    assert prefilling(tmp_path, monkeypatch).stderr == "", "a short one says nothing"
    monkeypatch.setattr(profile_command, "SECONDS_BETWEEN_LINES", 0.0)
    result = prefilling(tmp_path, monkeypatch)
    assert re.findall(r"profile: prefill, (\d) of 3 blocks, \d+ s", result.stderr) == ["1", "2", "3"]
    assert "prefill," not in result.stdout


def test_prefill_has_a_bar_on_a_terminal_and_no_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_command, "SECONDS_BETWEEN_LINES", 0.0)
    result = prefilling(tmp_path, monkeypatch, env={"FORCE_COLOR": "1"})  # rich takes it for a terminal
    assert "3/3" in result.stderr and "blocks," not in result.stderr


def test_pictures_are_in_both_forms_and_the_page_holds_them_all_with_what_they_show(recorded, tmp_path):
    out = tmp_path / "out"
    result = profile("--trace", recorded, "--out", out, "--block-sizes", "16")
    assert result.exit_code == 0, result.output
    kinds = ("heatmap", "overlap", "position", "structure", "pages", "bytes")
    names = {"layers", *(f"layer_{layer}_{kind}" for layer in ("000", "007") for kind in kinds)}
    assert {path.stem for path in out.glob("*.png")} == {path.stem for path in out.glob("*.svg")} == names
    for path in out.glob("*.svg"):
        ElementTree.parse(path)
    page = (out / "index.html").read_text("utf-8")
    assert page.count("data:image/png;base64,") == len(names)
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "synthetic: made by construction" in page
    assert page.count("<figcaption>") == len(names)
    findings = re.findall('alt="(.*?)"', page)
    assert all(finding.startswith("Synthetic selections. ") for finding in findings)
    for words in (
        "Layer 0: 16 neighbouring queries share 7 of 22 positions (32%)",
        "Layer 0: along the window, blocks of 16 share 7 positions of a union of 37",
        "Layer 0: 91% of selections are local (last 20 tokens), 9% are 2 sinks, no stride",
        "Layer 7: 52% of selections are local (last 12 tokens), 0% are 0 sinks, strides: every 32 (48%)",
    ):
        assert any(finding.endswith(words) for finding in findings), words


def test_text_of_a_trace_cannot_become_markup(tmp_path):
    one = trace(planted(100, 16, window=4), 100, 8)
    object.__setattr__(one.source, "text", "<script>alert('$1')</script>")
    save(one, tmp_path / "trace.npz")
    profile("--trace", tmp_path / "trace.npz", "--out", tmp_path / "out", "--no-plots", "--block-sizes", "8")
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "<script>" not in page and "&lt;script&gt;alert(&#39;$1" in page


def test_without_matplotlib_the_refusal_says_what_to_install(recorded, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = profile("--trace", recorded, "--out", tmp_path / "out", "--block-sizes", "16")
    assert result.exit_code == 2
    assert "pip install 'dsa-verify[profile]', or --no-plots" in result.stderr
    assert profile("--trace", recorded, "--out", tmp_path / "out", "--no-plots", "--block-sizes", "16").exit_code == 0


def test_analysis_needs_neither_jax_nor_matplotlib(recorded, tmp_path):
    arguments = [
        "profile",
        "--trace",
        str(recorded),
        "--out",
        str(tmp_path / "out"),
        "--no-plots",
        "--block-sizes",
        "16",
    ]
    code = (
        f"import sys, dsa_verify.cli\ntry: dsa_verify.cli.main({arguments!r})\n"
        "except SystemExit as end: code = end.code\n"
        "assert not code and not {'jax', 'matplotlib'} & set(sys.modules), code"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
