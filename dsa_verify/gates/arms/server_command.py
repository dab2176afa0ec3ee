"""A server that a gate starts itself: a shell command on a free port, awaited, and stopped with all its processes."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from dsa_verify.errors import ConfigError

HOST = "127.0.0.1"
_TAIL = 20
"""Lines of output that an error shows."""
_POLL_S = 0.05


@dataclass(frozen=True)
class ServerCommand:
    """How to start a server.

    command: for the shell; `{port}` stands for the port, and is needed. environment: on top of this process's own.
    health: the path that answers 200 once the server is ready. timeout_s: until it does. stop_s: for its end, before
    it is killed.
    """

    command: str
    environment: Mapping[str, str]
    health: str = "/health"
    timeout_s: float = 900.0
    stop_s: float = 10.0

    def __post_init__(self) -> None:
        if "{port}" not in self.command:
            raise ConfigError(f"the server command {self.command!r} has no {{port}}; write it where the port belongs")


@contextmanager
def running(server: ServerCommand, log: Path | None = None) -> Iterator[str]:
    """The URL of the started server, while the context lasts; then its whole process group is ended.

    log: where its output goes, a temporary file by default. Raises `ConfigError`, with the end of that output, for a
    command that ends, or that is not healthy in time.
    """
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="dsa-verify-") as folder:
        path = log or Path(folder) / "server.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", server.command.replace("{port}", str(port))],
                env={**os.environ, **server.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            url = f"http://{HOST}:{port}"
            _wait(process, server, url, path)
            yield url
        finally:
            _stop(process, server.stop_s)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return one.getsockname()[1]


def _wait(process: subprocess.Popen, server: ServerCommand, url: str, log: Path) -> None:
    deadline = time.monotonic() + server.timeout_s
    with httpx.Client(trust_env=False, timeout=min(5.0, server.timeout_s)) as http:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ConfigError(
                    f"the server command {server.command!r} ended with exit code {process.returncode} before it was "
                    f"ready; its output ends with: {_tail(log)}"
                )
            with suppress(httpx.TransportError):
                if http.get(url + server.health).status_code == 200:
                    return
            time.sleep(_POLL_S)
    raise ConfigError(
        f"the server command {server.command!r} did not answer {url}{server.health} with 200 within "
        f"{server.timeout_s:g} s; its output ends with: {_tail(log)}"
    )


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").splitlines()[-_TAIL:]
    return "\n".join(lines) or "(nothing)"


def _stop(process: subprocess.Popen, patience_s: float) -> None:
    """Asks the group to end, and kills what is left of it."""
    for sent, seconds in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 1.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            process.poll()  # takes the leader's end note, without which its group would linger
            if not _alive(process.pid):
                return
            time.sleep(_POLL_S)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
