"""The tutorial: its kernel is accepted, its change is rejected with the words that stand there, its commands exist."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsa_verify.cli import main

TEXT = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text("utf-8")
KERNEL, CHANGE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^\$? ?\.venv/bin/dsa-verify (.*)$", TEXT, re.MULTILINE)


def changed(kernel: str, change: str) -> str:
    """The kernel with its last two lines replaced, as step 3 asks for."""
    start, end = kernel.index("    slots = "), kernel.index("\n\n\ndef load")
    return kernel[:start] + change.rstrip() + kernel[end:]


@pytest.mark.parametrize("broken", [False, True])
def test_the_kernel_is_accepted_and_its_change_rejected_as_told(tmp_path, monkeypatch, broken):
    module = f"tutorial_{'changed' if broken else 'kernel'}"
    (tmp_path / f"{module}.py").write_text(changed(KERNEL, CHANGE) if broken else KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    chosen = ["--surface", "cache_write", "--scenario", "table-reversed-p16-f32", "--jobs", "1"]
    found = CliRunner().invoke(main, ["parity", "--provider", f"{module}:load", *chosen])
    assert found.exit_code == broken, found.output
    told = "  1 slots changed that no new token addresses; first pool page 63, offset 15 (request 0, position 15)"
    assert told in TEXT.splitlines()
    assert (told in found.stdout.splitlines()) == broken


def test_the_commands_and_their_options_exist():
    assert len(COMMANDS) >= 7
    for command in COMMANDS:
        words = command.split(" > ")[0].split()
        names = words[:2] if words[0] == "report" else words[:1]
        text = CliRunner().invoke(main, [*names, "--help"]).stdout
        assert text.startswith("Usage")
        assert [word for word in words if word.startswith("--") and word not in text] == [], command
