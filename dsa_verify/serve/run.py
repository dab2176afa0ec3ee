"""A server process from socket to end: bound before the model loads, ready when it answers, ended by a signal."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from dsa_verify.errors import ConfigError
from dsa_verify.serve.app import create_app
from dsa_verify.serve.model import ServerSettings, load
from dsa_verify.serve.worker import Worker

_GRACE_S = 10
"""Seconds for responses to be sent once their requests have ended."""


class _Server(uvicorn.Server):
    """Tells when it is ready; at the end, requests under way get what they have, with finish reason `abort`."""

    def __init__(self, config: uvicorn.Config, worker: Worker, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.worker, self.ready = worker, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self.worker.stop)
        await super().shutdown(sockets)


def run(settings: ServerSettings, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM. `ready` gets the URL once requests are answered. Raises `ConfigError`."""
    with _bound(host, port) as bound:
        # Also while the model loads, SIGTERM is an ordinary end; uvicorn raises it again after it has shut down.
        signal.signal(signal.SIGTERM, _end)
        served = load(settings, os.environ)
        worker = Worker(served.engine)
        worker.start()
        config = uvicorn.Config(
            create_app(served, worker), log_level="warning", lifespan="off", timeout_graceful_shutdown=_GRACE_S
        )
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{bound.getsockname()[1]}"
        with suppress(KeyboardInterrupt):
            _Server(config, worker, lambda: ready(url)).run([bound])


def _end(*_) -> None:
    raise SystemExit(0)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that holds the port and does not listen yet: who connects too early is refused, not kept waiting."""
    one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port))
    except OSError as error:
        one.close()
        raise ConfigError(f"cannot serve at {host}:{port}: {error}; choose another with --host and --port") from None
    return one
