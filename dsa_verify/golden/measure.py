"""The provider's part of a golden record: its base run judged, the share of the budget used, the bytes moved."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

import numpy as np

from dsa_verify.batch import Scenario
from dsa_verify.checks import CHECKS, checks_for
from dsa_verify.checks.cache import key_shares
from dsa_verify.checks.parity import shares_of
from dsa_verify.checks.selection import chosen_by
from dsa_verify.checks.traffic import moved
from dsa_verify.contract import Promise, Provider, Surface
from dsa_verify.evidence import Evidence, Result, Subject, Verdict
from dsa_verify.golden.fingerprint import number
from dsa_verify.run.verify import gather, verdicts_or_why

CHECKED = ("parity", "selection", "cache")
"""What judges the base run alone: `parity` runs the other checks, and recording takes a part of its time."""


def measure(
    surface: Surface, provider: Provider, scenario: Scenario, subject: Subject | None = None
) -> tuple[Result, ...]:
    """Judge the base run of one case; the first result carries the metrics. Stands in for `verify` in `suite`."""
    applicable = checks_for(attends=surface.attends, selects=surface.selects, writes=surface.writes)
    names = [name for name in applicable if name in CHECKED]
    entry: dict[str, object] = {}

    def judged() -> dict[str, Verdict]:
        evidence = gather(surface, provider, scenario, names)
        verdicts = {name: CHECKS[name].judge(evidence) for name in names}
        entry.update(_entry(evidence, surface))
        return verdicts

    subject = subject or Subject.of(provider.name, surface.name, scenario.name)
    first, *others = subject.results(verdicts_or_why(names, judged))
    return replace(first, measured=entry), *others


def _entry(evidence: Evidence, surface: Surface) -> dict[str, object]:
    default = asdict(Promise())
    promise = {name: value for name, value in asdict(evidence.promise).items() if value != default[name]}
    return {"promise": promise, "share": _shares(evidence), **_moved(evidence, surface)}


def _moved(evidence: Evidence, surface: Surface) -> dict[str, object]:
    """Bytes that the kernel's copies moved, also in units of the least possible and of what dense attention would.

    Nothing of kernels without copies of their own, and nothing on a device. A whole indexer has no least: XLA moves the
    operands of its projections, uncounted.
    """
    found = moved(evidence, surface.arrays)
    if found is None or not (found.bytes or evidence.promise.query_block):
        return {}
    if evidence.expected.keys is not None:
        return {"moved": {"bytes": found.bytes}}
    ratios = {name: number(found.bytes / due, 3) for name in ("least", "dense") if (due := getattr(found, name))}
    return {"moved": {"bytes": found.bytes, **ratios}}


def _shares(evidence: Evidence) -> dict[str, float]:
    """Errors in units of their budgets: the worst element, row gain and lse, and the root mean square of all elements;
    for a selection the worst near-tie, and the part of the oracle's choices that were missed; the worst computed key.

    How far the batch as a whole is stretched is not among them: it is one signed average about zero, so that it is no
    larger for being three times what it was. The parity check judges it.
    """
    outputs, expected, batch = evidence.base.outputs, evidence.expected, evidence.batch
    if outputs is None:
        return {}
    if expected.selection is not None:
        chosen = chosen_by(outputs)
        best = expected.selection.best
        kept = sum(len({*a} & {*b} - {-1}) for a, b in zip(chosen.tolist(), best.tolist(), strict=True))
        due = int((best >= 0).sum())
        found = {"missed": 1.0 - kept / due if due else 0.0}
        found["score"] = CHECKS["selection"].judge(evidence).share or 0.0
        if expected.keys is not None:
            pool = outputs["index_cache"].reshape(-1, batch.index_cache.shape[-1])
            found["key"] = float(key_shares(batch, pool, expected.keys).max())
    elif expected.attention is not None and batch.real.any():
        shares, _, _ = shares_of(batch, outputs, expected.attention, evidence.promise)
        found = {name: float(share.max()) for name, share in shares.items()}
        found["rms"] = float(np.sqrt(np.mean(shares["element"][batch.real] ** 2)))
    else:
        return {}
    return {name: number(value, 3) for name, value in found.items() if np.isfinite(value)}


def entries(results: Iterable[Result]) -> dict[tuple[str, str, str], Mapping[str, object]]:
    """What each (provider, surface, scenario) adds to its record; cases with a rejection add nothing."""
    cases: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        cases.setdefault((result.provider, result.surface, result.scenario), []).append(result)
    found: dict[tuple[str, str, str], Mapping[str, object]] = {}
    for case, mine in cases.items():
        statuses = {result.verdict.status for result in mine}
        if "rejected" in statuses:
            continue
        if "not verified" in statuses:
            reason = next(r.verdict.reason for r in mine if r.verdict.status == "not verified")
            found[case] = {"not_verified": reason}
        else:
            found[case] = mine[0].measured
    return found


def switches() -> str:
    """The environment variables that results may depend on; paths are left out."""
    settings = [
        f"{n}={v}" for n, v in sorted(os.environ.items()) if n.startswith(("JAX_", "XLA_", "DSA_")) and "/" not in v
    ]
    return " ".join(settings)
