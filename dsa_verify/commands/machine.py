"""What this machine can run and verify, and what it takes to verify the rest: the text of `doctor`."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dsa_verify.errors import DsaVerifyError
from dsa_verify.gates.options import PACKAGES
from dsa_verify.kernels.providers import provider_names
from dsa_verify.run import workers
from dsa_verify.run.suite import DEFAULT_PROVIDERS, load

_GATE, _TPU = "pip install 'dsa-verify[gate]'", "run it on a TPU, without JAX_PLATFORMS=cpu"
_CPU = "set JAX_PLATFORMS=cpu"


@dataclass(frozen=True)
class Ability:
    """Something that can be verified. missing: what it takes and is not here, empty where it can be done here; remedy:
    what to do about that."""

    what: str
    missing: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"no   {self.what}: {self.missing}; {self.remedy}" if self.missing else f"yes  {self.what}"


def abilities(backend: str) -> list[Ability]:
    """What can be verified on this machine, and why not the rest. backend: JAX's name of it."""
    native = backend == "tpu"

    def packages(what: str, names: Sequence[str], remedy: str) -> Ability:
        absent = [name for name in names if find_spec(name) is None]
        return Ability(what, f"{', '.join(absent)} not installed" if absent else "", remedy)

    simulated = "a TPU runs kernels as they are, watched by nobody" if native else ""
    return [
        Ability("parity, selection, cache, isolation and invariances (parity)"),
        Ability("races, waits, bounds and bytes moved (parity, mutants)", simulated, _CPU),
        Ability("that the compiled kernels compute the same (parity, golden check)", "" if native else "no TPU", _TPU),
        Ability("golden records of the oracle (golden check)"),
        packages("that TPU compilers take the kernels (compile)", ["libtpu"], "pip install 'dsa-verify[tpu]'"),
        packages("the decision about sparse prefill (gate)", PACKAGES, _GATE),
        packages("the gate against a server of our own (serve)", ["starlette", "uvicorn"], _GATE),
        packages("pictures of selections (profile)", ["matplotlib"], "pip install 'dsa-verify[profile]'"),
    ]


def machine(provider_path: Path | None = None) -> tuple[list[str], bool]:
    """What `doctor` prints, and whether the default providers can run here.

    Raises `RuntimeUnsupported` when the installed JAX cannot be watched.
    """
    workers.prepare_environment()
    from dsa_verify.runtime import environment

    found = environment()
    lines = ["versions and device", *(f"  {name:<12} {value}" for name, value in found.items())]
    lines += ["environment", *_variables(), "providers"]
    healthy = True
    for name in provider_names():
        try:
            provider = load(name, provider_path)
        except DsaVerifyError as error:
            lines.append(f"  {name:<14} not available: {error}")
            healthy = healthy and name not in DEFAULT_PROVIDERS
            continue
        lines.append(f"  {name:<14} {provider.version}: {', '.join(provider.kernels)}")
        lines += [f"  {'':<14} not {surface}: {reason}" for surface, reason in provider.missing.items()]
    running = "native on a TPU" if found["backend"] == "tpu" else "TPU interpret mode on a CPU"
    lines += [f"what can be verified here ({running})", *(f"  {one}" for one in abilities(found["backend"]))]
    return lines, healthy


def _variables() -> Iterator[str]:
    for name in sorted(os.environ):
        if name.startswith(("JAX_", "XLA_", "TPU_", "LIBTPU_", "DSA_")):
            yield f"  {name}={os.environ[name]}"
