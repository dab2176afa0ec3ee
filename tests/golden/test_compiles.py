"""The golden record of compiles: what moved fails, what did not changes no byte, nothing is forged."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from dsa_verify.commands import compile as command
from dsa_verify.compile.cases import CompileCase
from dsa_verify.compile.evidence import Compiled, Figures
from dsa_verify.errors import GoldenError
from dsa_verify.golden import compiles

CASE = CompileCase("builtin", "dense_mla", "v6e", "glm-5.2-tp16", "prefill", 4096, 131_072, 64)
MIB = 2**20


def record(temporaries: int = 100 * MIB, **changes: Any) -> dict[str, Any]:
    figures = Figures(temporaries, 2**30, 2**30, 2**30, 4 * MIB, 20 * MIB, None)
    done = Compiled(CASE, "accepted", "", "", figures, temporaries, figures.vmem)
    return {**done.record(), **changes}


def moved(folder, **changes: Any) -> list[str]:
    return [str(one) for one in compiles.drifts(compiles.read(folder)["cases"], [record(**changes)])]


@pytest.fixture
def folder(tmp_path):
    assert compiles.write(tmp_path, [record()], {"libtpu": "1"}) == [compiles.name_of(record())]
    return tmp_path


def test_the_same_compile_drifts_nowhere_and_changes_no_byte(folder):
    before = (folder / compiles.FILE).read_bytes()
    assert moved(folder) == []
    assert compiles.write(folder, [record(seconds=9.0)], {"libtpu": "2"}) == []
    assert (folder / compiles.FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temporaries": 106 * MIB}, "hbm_temp_bytes grew from 104,857,600 to 111,149,056"),
        ({"vmem_bytes": 22 * MIB}, "vmem_bytes grew from 20,971,520 to 23,068,672"),
        ({"code_bytes": 5 * MIB}, "code_bytes grew"),
        ({"verdict": "rejected", "cause": "vmem"}, "was accepted, is rejected vmem"),
    ],
)
def test_what_grew_or_is_judged_otherwise_is_reported(folder, changes, message):
    assert any(message in one for one in moved(folder, **changes))


def test_a_size_within_its_tolerance_or_smaller_fails_nothing(folder):
    assert moved(folder, temporaries=104 * MIB) == moved(folder, temporaries=MIB) == []


def test_a_smaller_size_is_written_by_the_next_update(folder):
    compiles.write(folder, [record(temporaries=50 * MIB)], {})
    assert moved(folder, temporaries=60 * MIB) != []


def test_a_case_without_a_record_is_reported(folder):
    assert "has no record; write it" in moved(folder, shape="other")[0]


def test_what_was_not_verified_is_no_record(folder):
    with pytest.raises(GoldenError, match="was not verified, so there is nothing to record"):
        compiles.write(folder, [record(verdict="not_verified", cause="environment")], {})


def test_a_record_that_was_edited_is_refused(folder):
    path = folder / compiles.FILE
    path.write_text(path.read_text().replace(str(100 * MIB), str(200 * MIB)))
    with pytest.raises(GoldenError, match=r"was changed by hand.*compile --golden update"):
        compiles.read(folder)


def test_the_command_checks_and_says_how_it_ended(folder, monkeypatch):
    def compiled(temporaries: int):
        figures = Figures(temporaries, 2**30, 2**30, 2**30, 4 * MIB, 20 * MIB, None)
        return [Compiled(CASE, "accepted", "", "", figures, temporaries, figures.vmem)], {"libtpu": "2"}

    for temporaries, code in ((100 * MIB, 0), (200 * MIB, 1)):
        monkeypatch.setattr(command, "_compile", lambda selection, size=temporaries: compiled(size))
        result = CliRunner().invoke(command.compile_kernels, ["--golden", "check", "--folder", str(folder), "--json"])
        assert result.exit_code == code, result.output
        assert json.loads(result.stdout)["cases"][0]["hbm_temp_bytes"] == temporaries
        assert f"golden: {2 * code} of 1 cases drifted" in result.stderr or code == 0
    assert "golden: recorded with libtpu 1, compiled with 2" in result.stderr


def test_an_update_is_refused_where_it_could_not_be_reviewed(folder):
    result = CliRunner().invoke(command.compile_kernels, ["--golden", "update", "--folder", str(folder)])
    assert result.exit_code != 0
    assert isinstance(result.exception, GoldenError)
