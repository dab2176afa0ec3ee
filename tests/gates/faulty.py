"""A server that answers by rule and fails by script: every fault that a client of a gate has to survive."""

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKENS = 7
"""Length of every prompt, in this server's tokens."""


def right(prompt: str) -> str:
    """The answer to a prompt."""
    return f"the answer to {prompt}"


def _say(body: dict, text: str | None, finish: str) -> None:
    body["choices"][0].update(text=text, message={"role": "assistant", "content": text}, finish_reason=finish)


STATUSES = {"http_400": 400, "http_404": 404, "http_408": 408, "http_429": 429, "http_500": 500, "http_503": 503}
GARBLED = {
    "null_text": lambda body: _say(body, None, "stop"),
    "empty_at_length": lambda body: _say(body, "", "length"),
    "empty_choices": lambda body: body.update(choices=[]),
    "finish_abort": lambda body: _say(body, "the ans", "abort"),
    "finish_null": lambda body: body["choices"][0].update(finish_reason=None),
    "no_usage": lambda body: body.pop("usage"),
    "no_prompt_tokens": lambda body: body["usage"].update(prompt_tokens=0),
    "too_many_tokens": lambda body: body["usage"].update(completion_tokens=10_000),
    "error_object": lambda body: (body.clear(), body.update(error={"message": "out of memory"})),
}
RAW = ("reset", "hang", "drip", "truncated", "no_answer")


class FaultyServer:
    """A context with a server on loopback.

    faults: by prompt, what happens to its first requests, one entry each: a name of `STATUSES`, `GARBLED` or `RAW`.
    `always`: to every request. outage_s: 503 to everyone so long after the first request. delay_s: of right answers.
    retry_after: header of every error status. `asked`: prompts in order of arrival, with `bodies` and times in `at`.
    """

    def __init__(
        self, faults: Mapping[str, Sequence[str]] = {}, *, always: str = "", outage_s=0.0, delay_s=0.0, retry_after=""
    ) -> None:
        self.faults, self.always = faults, always
        self.outage_s, self.delay_s, self.retry_after = outage_s, delay_s, retry_after
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.at: list[float] = []
        self.under_way, self.peak = 0, 0
        self.lock, self.closing = threading.Lock(), threading.Event()
        self.connections: list[socket.socket] = []
        self._seen: Counter[str] = Counter()

    def __enter__(self) -> "FaultyServer":
        self._server = _Quiet(("127.0.0.1", 0), _Handler)
        self._server.faulty = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.closing.set()
        self._server.shutdown()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    def next_fault(self, prompt: str, body: bytes) -> str:
        """Notes a request, and what is to happen to it; empty for a right answer."""
        with self.lock:
            self.asked.append(prompt)
            self.bodies.append(body)
            self.at.append(time.monotonic())
            number = self._seen[prompt]
            self._seen[prompt] += 1
            if time.monotonic() < self.at[0] + self.outage_s:
                return "http_503"
            script = self.faults.get(prompt, ())
            return script[number] if number < len(script) else self.always


class _Quiet(ThreadingHTTPServer):
    daemon_threads = False
    faulty: FaultyServer

    def handle_error(self, request, client_address) -> None:
        """Clients that go away are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Quiet
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.faulty.connections.append(self.connection)

    def log_message(self, format: str, *args) -> None:
        pass

    def do_POST(self) -> None:
        faulty = self.server.faulty
        content = self.rfile.read(int(self.headers["content-length"]))
        asked = json.loads(content)
        chat = self.path == "/v1/chat/completions"
        prompt = asked["messages"][0]["content"] if chat else asked["prompt"]
        fault = faulty.next_fault(prompt, content)
        with faulty.lock:
            faulty.under_way += 1
            faulty.peak = max(faulty.peak, faulty.under_way)
        try:
            self._play(fault, prompt, chat)
        finally:
            with faulty.lock:
                faulty.under_way -= 1

    def _play(self, fault: str, prompt: str, chat: bool) -> None:
        if fault in STATUSES:
            return self._send(STATUSES[fault], json.dumps({"error": {"message": fault}}).encode())
        body = _answer(prompt, chat)
        if fault in GARBLED:
            GARBLED[fault](body)
        content = json.dumps(body).encode()
        if fault in RAW:
            return self._spoil(fault, content)
        self.server.faulty.closing.wait(self.server.faulty.delay_s)
        return self._send(200, content)

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        if status != 200 and self.server.faulty.retry_after:
            self.send_header("Retry-After", self.server.faulty.retry_after)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _spoil(self, fault: str, content: bytes) -> None:
        """Does what no status says: cuts the connection or the body, or takes for ever."""
        closing = self.server.faulty.closing
        self.close_connection = True
        if fault == "truncated":
            return self._send(200, content[: len(content) // 2])
        if fault == "hang":
            closing.wait()
        if fault in ("hang", "no_answer"):
            return None
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for byte in content[: 3 if fault == "reset" else None]:
            self.wfile.write(bytes([byte]))
            if fault == "drip" and closing.wait(0.05):
                return None
        if fault == "reset":  # with nothing left to wait for, closing sends a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return None


def _answer(prompt: str, chat: bool) -> dict:
    text = right(prompt)
    content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    usage = {"prompt_tokens": TOKENS, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}}
    return {"choices": [{"index": 0, **content, "finish_reason": "stop"}], "usage": usage}
