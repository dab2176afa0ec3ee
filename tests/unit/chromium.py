"""A headless Chromium over its DevTools pipe: opens a page, and keeps what that asked for and complained of."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "DSA_VERIFY_CHROMIUM"
NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome", "chromium-browser")
SECONDS = 60
"""For one answer; a start on a busy machine takes some ten."""


def find() -> str | None:
    """The browser that $DSA_VERIFY_CHROMIUM names, or the first on PATH."""
    return os.environ.get(VARIABLE) or next((path for name in NAMES if (path := shutil.which(name))), None)


_WIRE = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""The browser reads commands from descriptor 3 and answers on 4."""


def _moved(descriptor: int) -> int:
    """The same out of the way of 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return moved


class Chromium:
    """One browser with one tab. `events` are what it told since the last page was opened."""

    def __init__(self, browser: str, profile: Path) -> None:
        (theirs_in, self.output), (self.input, theirs_out) = os.pipe(), os.pipe()
        theirs = [_moved(descriptor) for descriptor in (theirs_in, theirs_out)]
        # No sandbox: root has none, and the page is ours.
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WIRE, *map(str, theirs), browser, *options],
            pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for descriptor in theirs:
            os.close(descriptor)
        self.buffer, self.number, self.session, self.events = b"", 0, None, []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method of the DevTools protocol; raises `RuntimeError` with the browser's words where it refuses."""
        self.number += 1
        message: dict[str, object] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda one: one.get("id") == self.number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while True:
            while b"\0" in self.buffer:
                one, self.buffer = self.buffer.split(b"\0", 1)
                message = json.loads(one)
                if "method" in message:
                    self.events.append(message)
                if wanted(message):
                    return message
            if not select.select([self.input], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {SECONDS} seconds")
            found = os.read(self.input, 1 << 16)
            if not found:
                raise EOFError("the browser ended")
            self.buffer += found

    def open(self, path: Path, width: int, height: int, scheme: str) -> None:
        """Open a file in a window of this size, by someone who prefers `light` or `dark`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._until(lambda one: one.get("method") == "Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is on the open page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, as by hand."""
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)
            more = {}

    def asked(self) -> list[str]:
        """The addresses that the page asked for."""
        sent = (one["params"] for one in self.events if one["method"] == "Network.requestWillBeSent")
        return [one["request"]["url"] for one in sent]

    def complaints(self) -> list[str]:
        """What it wrote to the console, or failed at."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(one["params"]) for one in self.events if one["method"] in kinds]

    def close(self) -> None:
        self.session = None
        try:
            self.send("Browser.close")
            self.process.wait(SECONDS)
        except (RuntimeError, OSError, EOFError, subprocess.TimeoutExpired):  # it does not answer, or is gone
            self.process.kill()
            self.process.wait()
        finally:
            os.close(self.input)
            os.close(self.output)
