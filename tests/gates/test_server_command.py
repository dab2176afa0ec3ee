"""A server started by a command: awaited, its end and its silence told with its output, and nothing of it left."""

import sys
import time
from pathlib import Path

import httpx
import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms.server_command import ServerCommand, running

SERVER = f"{sys.executable} -m http.server --bind 127.0.0.1 {{port}}"


def serving(command: str, **options) -> ServerCommand:
    return ServerCommand(command, {}, **{"health": "/", "timeout_s": 30.0, **options})


def alive(pid: int) -> bool:
    """Whether a process still runs; one that waits for its parent to take note of its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def pid_in(path: Path) -> int:
    return int(path.read_text())


def test_server_answers_while_the_context_lasts_and_leaves_no_process(tmp_path):
    child, log = tmp_path / "child", tmp_path / "new" / "log"
    command = f"echo started in $WHERE; sleep 1000 & echo $! > {child}; {SERVER}; true"
    server = ServerCommand(command, {"WHERE": "the test"}, health="/", timeout_s=30)
    with running(server, log) as url:
        assert httpx.get(url, trust_env=False).status_code == 200
        assert alive(pid_in(child))
    assert not alive(pid_in(child))
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    assert "started in the test" in log.read_text()


def test_server_is_stopped_when_its_user_fails(tmp_path):
    pid = tmp_path / "pid"
    with pytest.raises(KeyError), running(serving(f"echo $$ > {pid}; exec {SERVER}")):
        raise KeyError("of the user")
    assert not alive(pid_in(pid))


def test_server_that_does_not_want_to_end_is_killed(tmp_path):
    pid = tmp_path / "pid"
    with running(serving(f"trap '' TERM; echo $$ > {pid}; {SERVER}; true", stop_s=0.2)):
        begun = time.monotonic()
    assert time.monotonic() - begun < 10
    assert not alive(pid_in(pid))


def test_command_that_ends_is_refused_with_its_code_and_output():
    server = serving("echo no such model >&2; exit 7 # {port}")
    with pytest.raises(ConfigError, match=r"ended with exit code 7 .* no such model"), running(server):
        pytest.fail("it never ran")


def test_command_that_never_answers_is_refused_with_its_output(tmp_path):
    pid = tmp_path / "pid"
    server = serving(f"echo $$ > {pid}; echo loading; exec sleep 1000 # {{port}}", timeout_s=0.5, health="/health")
    with pytest.raises(ConfigError, match=r"answer .*/health with 200 within 0.5 s; .* loading"), running(server):
        pytest.fail("it was never ready")
    assert not alive(pid_in(pid))


def test_server_that_answers_something_else_is_not_ready():
    server = serving(SERVER, health="/absent", timeout_s=1.5)
    with pytest.raises(ConfigError, match="did not answer"), running(server):
        pytest.fail("it was never ready")


def test_command_without_a_port_is_refused():
    with pytest.raises(ConfigError, match=r"has no \{port\}"):
        ServerCommand("serve --port 8000", {})
