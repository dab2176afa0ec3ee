"""The child process of one compile: reads a case from stdin, writes the result to stdout, ends itself when too slow."""

import json
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dsa_verify.compile.cases import CompileCase
from dsa_verify.compile.evidence import Compiled, judge, not_verified, refused
from dsa_verify.compile.foreign import NOTES
from dsa_verify.errors import ContractError
from dsa_verify.run import workers

MESSAGE = 2_000
"""Characters of a compiler's message that are kept."""


def answer(case: CompileCase, path: Path | None) -> Compiled:
    """Compile one case in this process and judge it."""
    from dsa_verify.compile import compiler

    try:
        devices = compiler.devices_of(case)
    except Exception as error:
        return not_verified(case, "environment", f"libtpu cannot describe {case.target}: {_message(error)}")
    try:
        kernel = compiler.kernel_of(case, devices, path)
    except Exception as error:
        return not_verified(case, "broke", f"the kernel cannot be loaded: {_message(error)}")
    try:
        done = judge(case, compiler.figures_of(case, kernel, devices))
        return replace(done, message=done.message or NOTES.get((case.provider, case.surface), ""))
    except ContractError as error:
        return not_verified(case, "contract", _message(error))
    except Exception as error:  # the compiler's refusals come as many types, from tracing to code generation
        return refused(case, _message(error))


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:MESSAGE]


def main() -> None:
    """Answer one order: {"case", "path", "threads", "seconds"}."""
    out = os.dup(1)
    os.dup2(2, 1)  # stdout is the answer's
    order: dict[str, Any] = json.load(sys.stdin)
    signal.alarm(order["seconds"])  # so that no compile outlives a parent that was killed
    workers.prepare_environment(order["threads"])
    done = asdict(answer(CompileCase(**order["case"]), Path(order["path"]) if order["path"] else None))
    os.write(out, json.dumps(done).encode())
    os._exit(0)  # what libtpu does at exit is no part of the answer


if __name__ == "__main__":
    main()
