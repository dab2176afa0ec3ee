"""What a compile showed: the compiler's figures or its refusal, and the verdict against a chip's budgets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dsa_verify.compile.cases import CompileCase
from dsa_verify.compile.chips import CHIPS, GIB, MIB
from dsa_verify.compile.layers import surface_of

Verdict = Literal["accepted", "rejected", "not verified"]


@dataclass(frozen=True)
class Figures:
    """What the compiler says of one program, in bytes of one device.

    temporaries, arguments, outputs, aliased: HBM; an aliased output is an argument updated in place.
    vmem: the most that one kernel of the program allocates. vmem_limit: the most that one asks for.
    pool_growth: how much the temporaries grow with a pool twice as large; 0 where that was not tried.
    """

    temporaries: int
    arguments: int
    outputs: int
    aliased: int
    code: int
    vmem: int | None
    vmem_limit: int | None
    pool_growth: int = 0

    @property
    def hbm(self) -> int:
        """All HBM that the program needs while it runs."""
        return self.temporaries + self.arguments + self.outputs - self.aliased + self.code


@dataclass(frozen=True)
class Compiled:
    """One case and what became of it.

    cause: for a rejection `compiler`, `hbm`, `vmem`, `pool copy`, `crash`, `time` or `memory`; for what was not
      verified `missing`, `contract`, `environment` or `broke`; empty if accepted.
    """

    case: CompileCase
    verdict: Verdict
    cause: str = ""
    message: str = ""
    figures: Figures | None = None
    hbm_temp_bytes: int | None = None
    vmem_bytes: int | None = None
    seconds: float = 0.0
    cached: bool = False

    def record(self) -> dict[str, Any]:
        """One entry of the JSON document."""
        case = self.case
        return {
            "provider": case.provider,
            "surface": case.surface,
            "shape": case.shape,
            "target": case.target,
            "verdict": self.verdict.replace(" ", "_"),
            "hbm_temp_bytes": self.hbm_temp_bytes,
            "vmem_bytes": self.vmem_bytes,
            "code_bytes": self.figures.code if self.figures else None,
            "hbm_bytes": self.figures.hbm if self.figures else None,
            "seconds": round(self.seconds, 2),
            "cause": self.cause,
            "message": self.message,
            "cached": self.cached,
        }


def not_verified(case: CompileCase, cause: str, reason: str) -> Compiled:
    return Compiled(case, "not verified", cause, reason)


def refused(case: CompileCase, message: str) -> Compiled:
    """The compiler's refusal, with the figure in it where there is one."""
    done = Compiled(case, "rejected", "compiler", message)
    hbm = _first(_HBM, message)
    if hbm is not None:
        return replace(done, cause="hbm", hbm_temp_bytes=hbm)
    vmem = _first(_VMEM, message)
    if vmem is not None:
        return replace(done, cause="vmem", vmem_bytes=vmem)
    return done


def judge(case: CompileCase, figures: Figures) -> Compiled:
    """A program that compiles, against the budgets of its chip."""
    chip, pool = CHIPS[case.target], case.pool_bytes()
    done = Compiled(case, "accepted", "", "", figures, figures.temporaries, figures.vmem)
    asked = max(figures.vmem or 0, figures.vmem_limit or 0)
    if figures.hbm > chip.hbm_bytes:
        reason = (
            f"needs {size(figures.hbm)} of HBM, {size(figures.temporaries)} of it temporaries; "
            f"one {chip.name} device has {size(chip.hbm_bytes)}"
        )
        return replace(done, verdict="rejected", cause="hbm", message=reason)
    if asked > chip.vmem_bytes:
        reason = f"a kernel may use {size(asked)} of VMEM; a core of {chip.name} has {size(chip.vmem_bytes)}"
        return replace(done, verdict="rejected", cause="vmem", message=reason)
    if figures.pool_growth >= pool:
        reason = (
            f"{size(figures.temporaries)} of temporaries hold a copy of the paged pool ({size(pool)}): with a pool "
            f"twice as large they grow by {size(figures.pool_growth)}"
        )
        return replace(done, verdict="rejected", cause="pool copy", message=reason)
    if surface_of(case.surface).writes and figures.outputs - figures.aliased >= pool:
        reason = f"the paged pool ({size(pool)}) comes back in new memory, although its old memory was given away"
        return replace(done, verdict="rejected", cause="pool copy", message=reason)
    return done


def size(count: float) -> str:
    """Bytes for a reader."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count:.0f} B"


_HBM = (
    r"required for HLO temporaries \(([\d.]+[KMGT]?)\) exceeds available HBM",
    r"HLO temp +([\d.]+[KMGT]?)",
    r"Used ([\d.]+[KMGT]?) of [\d.]+[KMGT]? hbm",
)
_VMEM = (
    r"Scoped allocation with size ([\d.]+[KMGT]?) and limit",
    r"Allocation \(size=(\d+)\) would exceed memory .*space=vmem",
)
"""How the compiler words what does not fit, the most telling figure first."""


def _first(patterns: tuple[str, ...], message: str) -> int | None:
    found = next((match for pattern in patterns if (match := re.search(pattern, message))), None)
    return None if found is None else _bytes(found[1])


def _bytes(text: str) -> int:
    powers = {"K": 10, "M": 20, "G": 30, "T": 40}
    number = text.rstrip("KMGT")
    return int(float(number) * 2 ** powers.get(text[len(number) :], 0))


def from_document(case: CompileCase, kept: Mapping[str, Any]) -> Compiled:
    """What `dataclasses.asdict` made of a `Compiled`, with its case put back."""
    figures = Figures(**kept["figures"]) if kept["figures"] else None
    return Compiled(**{**kept, "case": case, "figures": figures})
