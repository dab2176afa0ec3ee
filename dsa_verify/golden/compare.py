"""Where a record and what is computed now disagree: beyond float64 noise, or beyond the growth a metric is allowed.

What is exact (recipe, digests, selections) must be equal. Sums and samples may differ by the tolerance that their
fingerprint derives; sums of budgets by BUDGET_NOISE. Provenance is ignored, so a record made on a CPU holds on a TPU.

A provider's metrics are errors in units of their budget. One drifts when it grows by more than GROWTH times and by more
than FLOOR of the budget, and is better when it shrinks by as much.

GROWTH 1.5: the worst of N elements with independent errors scatters by about 1.28 / (2 ln N) when only the order of
operations changes, 7 % for the 8,192 elements of a quick scenario; one bit of precision lost doubles it. FLOOR 0.1: a
tenth of the budget is what a change of compiler or device may cost a kernel whose share is near zero (budgets bound
worst cases, float32 kernels use a few per cent of them), and is below what the parity check leaves to a correct kernel
(0.7 of 1). For `missed`, the part of the oracle's choices that a provider leaves out, the floor is 0.01: one near-tie
that falls otherwise among a hundred choices.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsa_verify.golden.canonical import candidates, ranges

Kind = Literal["drift", "better", "new", "unmeasured"]

GROWTH, FLOOR, MISSED_FLOOR = 1.5, 0.1, 0.01
BUDGET_NOISE = 1e-9
"""Relative. A budget is a smooth function of the oracle's float64 intermediates, which differ by parts in 1e-13."""


@dataclass(frozen=True)
class RecordDifference:
    """One field that is not what the record says.

    kind: `drift` fails a check; `better` and `new` are what an update would also write, and fail nothing;
      `unmeasured` fails a check and takes a run of the kernels to mend.
    """

    field: str
    expected: str
    found: str
    more: str = ""
    kind: Kind = "drift"

    def __str__(self) -> str:
        more = f" ({self.more})" if self.more else ""
        return f"{self.field}: expected {self.expected}, found {self.found}{more}"


def differences(stored: Mapping[str, Any], found: Mapping[str, Any]) -> list[RecordDifference]:
    """What disagrees in the parts that `found` has; of another question the answers are not compared."""
    recipe = found["recipe"]
    changes = list(_mapping("recipe", stored.get("recipe"), recipe))
    changes += _mapping("input", stored.get("inputs"), found["inputs"])
    if changes:
        return changes
    changes += _selection(recipe, stored.get("selection"), found.get("selection"))
    for name in sorted({*stored.get("outputs", {}), *found.get("outputs", {})}):
        changes += _output(recipe, name, stored.get("outputs", {}).get(name), found.get("outputs", {}).get(name))
    changes += _cache(stored.get("cache_kv"), found.get("cache_kv"))
    changes += _budget(stored.get("budget"), found.get("budget"))
    for name, metrics in sorted(found.get("providers", {}).items()):
        changes += provider_differences(name, stored.get("providers", {}).get(name), metrics)
    return changes


def place(recipe: Mapping[str, Any], token: int) -> str:
    """A query token in the domain's coordinates, from the recipe's requests alone."""
    start = 0
    for seq, request in enumerate(recipe["requests"].split()):
        kv_len, q_len = (int(n) for n in request.split("/")[0].split(":"))
        if start <= token < start + q_len and kv_len:
            return f"token {token} (request {seq}, position {kv_len - q_len + token - start})"
        start += q_len
    return f"padding token {token}"


def _mapping(
    what: str, stored: Mapping[str, Any] | None, found: Mapping[str, Any] | None
) -> Iterator[RecordDifference]:
    stored, found = stored or {}, found or {}
    for key in sorted({*stored, *found}):
        if stored.get(key) != found.get(key):
            yield RecordDifference(f"{what} {key}", _text(stored.get(key)), _text(found.get(key)))


def _text(value: object) -> str:
    return "nothing" if value is None else str(value)


def _selection(
    recipe: Mapping[str, Any], stored: list[str] | None, found: list[str] | None
) -> Iterator[RecordDifference]:
    stored, found = stored or [], found or []
    if len(stored) != len(found):
        yield RecordDifference("selection", f"{len(stored)} tokens", f"{len(found)} tokens")
        return
    moved = [token for token, (a, b) in enumerate(zip(stored, found, strict=True)) if a != b]
    if not moved:
        return
    before, after = set(candidates(stored[moved[0]])), set(candidates(found[moved[0]]))
    others = f"; {len(moved)} of {len(found)} tokens differ" if len(moved) > 1 else ""
    yield RecordDifference(
        f"selection of {place(recipe, moved[0])}",
        ranges(sorted(before - after)),
        ranges(sorted(after - before)),
        f"{len(before & after)} choices agree{others}",
    )


def _output(recipe: Mapping[str, Any], name: str, stored: Any, found: Any) -> Iterator[RecordDifference]:
    if stored is None or found is None or stored["shape"] != found["shape"]:
        yield RecordDifference(f"{name} shape", _text(stored and stored["shape"]), _text(found and found["shape"]))
        return
    if stored["empty"] != found["empty"]:
        yield RecordDifference(f"{name}: elements at -inf", str(stored["empty"]), str(found["empty"]))
    tolerance = max(stored["tolerance"], found["tolerance"])
    yield from _rows(recipe, name, stored["rows"], found["rows"], tolerance)
    numbered = {f"signed sum {k} of the whole": (a, b) for k, (a, b) in enumerate(_pairs(stored, found, "whole"))}
    for at, wanted in stored["samples"].items():
        numbered[f"[{at}]"] = wanted, found["samples"].get(at, math.nan)
    off = {label: pair for label, pair in numbered.items() if not abs(pair[0] - pair[1]) <= tolerance}
    samples = [label for label in off if label.startswith("[")]
    for label in samples or list(off)[:1]:
        wanted, got = off[label]
        yield RecordDifference(
            f"{name}{label}" if label in samples else f"{name}, {label}", *_apart(wanted, got, tolerance)
        )


def _pairs(stored: Any, found: Any, key: str) -> Iterator[tuple[Any, Any]]:
    return zip(stored[key], found[key], strict=True)


def _rows(
    recipe: Mapping[str, Any], name: str, stored: Any, found: Any, tolerance: float
) -> Iterator[RecordDifference]:
    """The token whose signed sums moved most, and how many others moved."""
    apart = [max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in zip(stored, found, strict=True)]
    moved = [token for token, distance in enumerate(apart) if not distance <= tolerance]
    if not moved:
        return
    token = max(moved, key=lambda t: apart[t])
    k = max(range(len(found[token])), key=lambda i: abs(stored[token][i] - found[token][i]))
    wanted, got, more = _apart(stored[token][k], found[token][k], tolerance)
    others = f"; {len(moved)} of {len(found)} tokens moved" if len(moved) > 1 else ""
    yield RecordDifference(f"{name} of {place(recipe, token)}, signed sum {k}", wanted, got, more + others)


def _apart(wanted: float, got: float, tolerance: float) -> tuple[str, str, str]:
    return f"{wanted:.12g}", f"{got:.12g}", f"{abs(wanted - got):.2g} apart, {tolerance:.2g} is allowed"


def _cache(stored: Any, found: Any) -> Iterator[RecordDifference]:
    if stored == found:
        return
    stored, found = stored or {"pool": None, "written": {}}, found or {"pool": None, "written": {}}
    pages = sorted({*stored["written"], *found["written"]}, key=int)
    changed = [page for page in pages if stored["written"].get(page) != found["written"].get(page)]
    where = f"written pages {', '.join(changed)} differ" if changed else "a page that the step does not write differs"
    yield RecordDifference("cache_kv", _text(stored["pool"]), _text(found["pool"]), where)


def _budget(stored: Mapping[str, float] | None, found: Mapping[str, float] | None) -> Iterator[RecordDifference]:
    stored, found = stored or {}, found or {}
    for key in sorted({*stored, *found}):
        a, b = stored.get(key), found.get(key)
        if a is None or b is None or not math.isclose(a, b, rel_tol=BUDGET_NOISE, abs_tol=0.0):
            yield RecordDifference(f"budget {key}", _text(a), _text(b), "the error budget itself changed")


def provider_differences(name: str, stored: Any, found: Any) -> Iterator[RecordDifference]:
    """How a provider's entry moved."""
    if stored is None:
        yield RecordDifference(name, "nothing recorded", _entry(found), kind="new")
    elif ("not_verified" in stored) or ("not_verified" in found):
        if ("not_verified" in stored) != ("not_verified" in found):
            kind: Kind = "drift" if "not_verified" in found else "better"
            yield RecordDifference(name, _entry(stored), _entry(found), kind=kind)
    else:
        yield from _mapping(f"{name} promises", stored["promise"], found["promise"])
        for metric in sorted({*stored["share"], *found["share"]}):
            yield from _metric(name, metric, stored["share"].get(metric), found["share"].get(metric))
        yield from _moved(name, stored.get("moved"), found.get("moved"))


def _moved(
    provider: str, stored: Mapping[str, float] | None, found: Mapping[str, float] | None
) -> Iterator[RecordDifference]:
    """Bytes are counted, not measured: any more is a drift. A device counts none and is held against nothing."""
    if found is None:
        return
    if stored is None:
        yield RecordDifference(f"{provider} moves", "nothing recorded", _bytes(found), kind="new")
    elif found != stored:
        kind: Kind = "drift" if found["bytes"] > stored["bytes"] else "better"
        yield RecordDifference(f"{provider} moves", _bytes(stored), _bytes(found), kind=kind)


def _bytes(moved: Mapping[str, float]) -> str:
    ratios = [f"{moved[name]:.3g} times {what}" for name, what in _AGAINST.items() if name in moved]
    return f"{moved['bytes']:,} bytes" + (f" ({', '.join(ratios)})" if ratios else "")


_AGAINST = {"least": "the least possible", "dense": "dense"}


def _entry(entry: Mapping[str, Any]) -> str:
    if "not_verified" in entry:
        return f"not verified: {entry['not_verified']}"
    return ", ".join(f"{name} {value:.3g}" for name, value in entry["share"].items()) or "verified"


def _metric(provider: str, name: str, stored: float | None, found: float | None) -> Iterator[RecordDifference]:
    if stored is None or found is None:
        yield RecordDifference(f"{provider} {name}", _text(stored), _text(found), "share of its budget")
    elif grown(name, stored, found):
        times = f"grew {found / stored:.3g} times" if stored else "grew from nothing"
        yield RecordDifference(f"{provider} {name}", f"{stored:.3g}", f"{found:.3g}", f"share of its budget, {times}")
    elif grown(name, found, stored):
        yield RecordDifference(
            f"{provider} {name}", f"{stored:.3g}", f"{found:.3g}", "share of its budget", kind="better"
        )


def grown(name: str, before: float, after: float) -> bool:
    """Whether a metric grew beyond what the same accuracy explains; see the top of this file."""
    return after > GROWTH * before and after - before > (MISSED_FLOOR if name == "missed" else FLOOR)
