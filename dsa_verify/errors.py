"""The exception tree, every refusal of dsa-verify and what its reader can do about it; and the exit codes.

DsaVerifyError
├── BatchError          a batch that contradicts itself; raised before any kernel runs
├── ContractError       a call that no kernel may accept: shapes, dtypes, page size, missing scale
├── ConfigError         a name, option or file of the user's that does not exist or does not parse
├── GoldenError         a golden record that is corrupt or was edited by hand, or an update that is refused
├── ProviderError       a provider that cannot be loaded, raised, or returned something unusable
├── RequestError        a generation request that cannot be served: empty, too long for the pool, a strange setting
├── EngineError         an engine whose pages or steps contradict themselves, or a runner that answers nonsense
├── OutOfReach          a case that a provider, a kernel or this suite does not take; it is not verified
├── NotSimulated        a kernel does what interpret mode cannot simulate; its cases are not verified
└── RuntimeUnsupported  a JAX whose interpreter internals are not where this version expects them
"""

import difflib
from collections.abc import Iterable
from enum import IntEnum

_LISTED = 24
"""Names beyond which an error does not spell them all out."""


class Exit(IntEnum):
    """Exit codes of every command. A gate's verdicts have them too: PASS, FAIL, INVALID and INCONCLUSIVE."""

    ACCEPTED = PASS = 0
    REJECTED = FAIL = 1
    USAGE = 2
    BROKE = INVALID = 3
    NOTHING_VERIFIED = INCONCLUSIVE = 4
    INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it: nothing is decided


class DsaVerifyError(Exception):
    """Root of the tree; its text says what was expected, what was found, where, and what to do."""


class BatchError(DsaVerifyError):
    """A batch is inconsistent with itself."""


class ContractError(DsaVerifyError):
    """The static part of a call breaks the contract of its surface."""


class ConfigError(DsaVerifyError):
    """The user named something that does not exist or cannot be read."""


class GoldenError(DsaVerifyError):
    """A golden record cannot be trusted, or may not be changed now."""


class ProviderError(DsaVerifyError):
    """A provider failed in a way that is not a verdict about its numbers."""


class RequestError(DsaVerifyError):
    """A generation request can never be served as it is."""


class EngineError(DsaVerifyError):
    """Pages, steps or logits of an engine are not what they must be."""


class OutOfReach(DsaVerifyError):
    """Nothing is run, and nothing can be said: the provider lacks the kernel, or the kernel does not take the batch."""


class NotSimulated(DsaVerifyError):
    """A kernel does what interpret mode cannot simulate, so nothing can be said about it on this machine."""


class RuntimeUnsupported(DsaVerifyError):
    """The installed JAX lacks a private name that interpret mode needs."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """One clear error for a name that is not in a table, with the nearest ones suggested."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if len(known) > _LISTED:
        return ConfigError(f"unknown {kind} {name!r}.{hint} There are {len(known)}; `dsa-verify list` prints them.")
    return ConfigError(f"unknown {kind} {name!r}.{hint} Available: {', '.join(known)}.")
