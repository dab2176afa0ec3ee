"""Runs compiles: each in a process of its own under a time and a memory limit, and keeps what they showed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsa_verify.compile import digest, foreign
from dsa_verify.compile.cases import CompileCase
from dsa_verify.compile.chips import GIB
from dsa_verify.compile.evidence import Compiled, from_document, not_verified, size
from dsa_verify.compile.layers import LAYERS, PROVIDER
from dsa_verify.contract import Provider

NO_COMPILER = "libtpu is not installed, so nothing was compiled; pip install 'dsa-verify[tpu]'"

# The slowest case of the default set was seen to take 134 s on a busy machine, the fattest 1.1 GiB.
SECONDS = 600
MEMORY = 8 * GIB
_POLL = 0.1


@dataclass(frozen=True)
class CompileSettings:
    """How to run. `folder`: where results are kept, None for nowhere. `path`: a checkout to import providers from."""

    jobs: int = 1
    folder: Path | None = None
    path: Path | None = None
    seconds: int = SECONDS
    memory: int = MEMORY

    @property
    def limits(self) -> tuple[int, int]:
        return self.seconds, self.memory


def run(
    cases: Sequence[CompileCase],
    providers: Mapping[str, Provider],
    settings: CompileSettings,
    on_done: Callable[[Compiled], None] = lambda done: None,
) -> list[Compiled]:
    """Compile every case and judge it, in their order; `on_done` hears of each as it comes.

    However this ends, no process is left behind.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(settings.jobs) as pool:
        futures = {
            pool.submit(_one, case, providers[case.provider], settings, stop): number
            for number, case in enumerate(cases)
        }
        results: dict[int, Compiled] = {}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                on_done(results[futures[future]])
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return [results[number] for number in range(len(cases))]


def _one(case: CompileCase, provider: Provider, settings: CompileSettings, stop: threading.Event) -> Compiled:
    if case.surface in LAYERS and provider.name != PROVIDER:
        return not_verified(case, "missing", f"layers run the kernels of {PROVIDER}, not of {provider.name}")
    if case.surface not in (*provider.kernels, *LAYERS) and (case.provider, case.surface) not in foreign.UNRUN:
        reason = provider.missing.get(case.surface, f"{provider.name} has no {case.surface}")
        return not_verified(case, "missing", reason)
    if find_spec("libtpu") is None:
        return not_verified(case, "environment", NO_COMPILER)
    file = None
    if settings.folder is not None:
        arrays = {**case.arrays(), **case.statics()}
        file = settings.folder / f"{digest.key(case, arrays, settings.limits, settings.path)}.json"
        kept = _recall(case, file)
        if kept is not None:
            return kept
    start = time.perf_counter()
    done = replace(compile_apart(case, settings, stop), seconds=time.perf_counter() - start)
    if file is not None and done.cause not in ("environment", "broke"):  # of this moment, not of the kernel
        _keep(file, done)
    return done


def compile_apart(case: CompileCase, settings: CompileSettings, stop: threading.Event) -> Compiled:
    """Compile in a new process; what ends it is a verdict of its own."""
    threads = max(1, (os.cpu_count() or 1) // settings.jobs)
    order = {"case": asdict(case), "threads": threads, "seconds": settings.seconds + 10}
    order["path"] = str(settings.path) if settings.path else None
    command = [sys.executable, "-m", "dsa_verify.compile.child"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=_environment())
        assert process.stdin is not None
        try:
            with process.stdin as pipe:
                pipe.write(json.dumps(order).encode())
            ended = _watch(case, process, settings, stop)
        finally:
            process.kill()
            process.wait()
        if ended is not None:
            return ended
        if process.returncode == 0:
            return from_document(case, json.loads(_read(out)))
        return _died(case, process.returncode, _read(err))


def _watch(
    case: CompileCase, process: subprocess.Popen, settings: CompileSettings, stop: threading.Event
) -> Compiled | None:
    """Wait for a process; what it was ended for, or None if it ended by itself."""
    deadline = time.monotonic() + settings.seconds
    while process.poll() is None:
        if stop.wait(_POLL):
            return not_verified(case, "environment", "interrupted")
        if time.monotonic() > deadline:
            return Compiled(case, "rejected", "time", f"the compile takes longer than {settings.seconds} s")
        resident = _resident(process.pid)
        if resident > settings.memory:
            reason = f"the compile takes {size(resident)} of memory, the limit is {size(settings.memory)}"
            return Compiled(case, "rejected", "memory", reason)
    return None


def _died(case: CompileCase, code: int, stderr: str) -> Compiled:
    """The verdict on a process that ended without an answer."""
    tail = " ".join(stderr.split())[-1_000:]
    if code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT):
        return not_verified(case, "environment", f"somebody ended the compile with {signal.Signals(-code).name}")
    if code < 0:
        return Compiled(case, "rejected", "crash", f"the compiler died of {signal.Signals(-code).name}: {tail}")
    return not_verified(case, "broke", f"the process of the compile ended with code {code}: {tail}")


def _environment() -> dict[str, str]:
    """Of a compile: no TPU is looked for, libtpu may be loaded by several processes and is quiet."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LOG_DIR": "disabled",
        "TPU_ACCELERATOR_TYPE": "v6e-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 once it is gone. libtpu exists for Linux only, and so does this."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _read(file: Any) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _recall(case: CompileCase, file: Path) -> Compiled | None:
    try:
        return replace(from_document(case, json.loads(file.read_text("utf-8"))), cached=True)
    except (OSError, ValueError, KeyError, TypeError):  # none, or torn by an interruption: as good as none
        return None


def _keep(file: Path, done: Compiled) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    fresh.write_text(json.dumps(asdict(done)), "utf-8")
    fresh.replace(file)
