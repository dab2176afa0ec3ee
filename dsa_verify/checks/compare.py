"""Compares a kernel's results on a variant with those on the base batch: bit for bit, or within both budgets."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from dsa_verify.checks import describe
from dsa_verify.checks.bits import differing_rows
from dsa_verify.checks.tolerance import attention_budget, key_budget, score_band
from dsa_verify.contract import Promise
from dsa_verify.evidence import Evidence, Rerun, Run, ScoredCandidates, Verdict

NOT_BY_TOKEN = ("cache_kv", "index_cache", "topk_scores")
"""Outputs that no row for each token is compared of: pools have slots, and a score goes with the choice it is told of,
which near-ties exchange; the `selection` check judges it."""


class Rows(NamedTuple):
    """One output of both runs, a row for each token that is compared; `tokens` are those of the base."""

    got: np.ndarray
    wanted: np.ndarray
    tokens: np.ndarray


class Difference(NamedTuple):
    """How much of what is allowed each row uses (above 1 is too much), and what is said of the worst one."""

    share: np.ndarray
    note: str


def same(evidence: Evidence, rerun: Rerun, when: str, *, exact: bool) -> Verdict:
    """Whether the variant's results are the base's: in every bit if `exact`, else within the sum of both budgets.

    The cache is compared bit for bit in any case, but for index keys that the surface computes. `when` says in a
    rejection what the variant changed.
    """
    if rerun.absent:
        return Verdict.not_verified(rerun.absent)
    base = rerun.reference or evidence.base
    failure = _failure(base, rerun)
    if failure:
        return Verdict.rejected(f"{when}: {failure}")
    assert base.outputs is not None
    shares: list[float] = []
    for name, rows in _compared(base.outputs, rerun):
        if name in ("out", "lse"):
            found = (
                _bits(rows, rerun.variant.scale if name == "out" else 1.0)
                if exact
                else _attention(evidence, rerun, name, rows)
            )
        elif exact or evidence.promise.recall == 1.0:
            found = _selection(evidence, rows, exact)
        else:
            return Verdict.not_verified("an approximate selection may depend on the order of the sums")
        bad = rows.tokens[found.share > 1.0]
        if len(bad):
            at = int(rows.tokens[np.argmax(found.share)])
            place = f"{describe.token(evidence.batch, at)}{_step_of(rerun, at)}"
            reason = f"{when}, {name} of {place} changes: {found.note}; {describe.spread(evidence.batch, bad)}"
            return Verdict.rejected(reason, float(found.share.max()))
        shares += [] if exact else [float(found.share.max())]
    for name in ("cache_kv", "index_cache"):
        moved = _cache(evidence, name, base.outputs, rerun)
        if moved is not None:
            return Verdict.rejected(f"{when}, the cache's row at {describe.slot(evidence.batch, moved)} changes")
    return Verdict.accepted(max(shares, default=None))


def _failure(base: Run, rerun: Rerun) -> str | None:
    """Why there is nothing to compare, or what the runtime saw in the variant's runs."""
    if rerun.problem:
        return rerun.problem
    for number, run in enumerate(rerun.runs, start=1):
        if run.findings:
            return f"{run.findings[0].kind} in step {number}: {run.findings[0].message}"
        if run.outputs is None:
            return f"the kernel failed in step {number} and returned nothing"
    if base.outputs is None:
        return "the kernel failed and returned nothing to compare with; see the races check for its message"
    return None


def _compared(base: Mapping[str, np.ndarray], rerun: Rerun) -> Iterator[tuple[str, Rows]]:
    """Every output that both have and that has a row for each token."""
    tokens = [step.tokens for step in rerun.variant.steps]
    kept = np.concatenate(tokens)
    for name, value in base.items():
        parts = [run.outputs.get(name) for run in rerun.runs if run.outputs is not None]
        if name in NOT_BY_TOKEN or any(part is None for part in parts):
            continue
        got = np.concatenate([part for part in parts if part is not None])
        yield name, Rows(got[kept >= 0], value[kept[kept >= 0]], kept[kept >= 0])


def _step_of(rerun: Rerun, token: int) -> str:
    steps = [number for number, step in enumerate(rerun.variant.steps, start=1) if (step.tokens == token).any()]
    return f", step {steps[0]} of {len(rerun.variant.steps)}" if len(rerun.variant.steps) > 1 else ""


def _bits(rows: Rows, scale: float) -> Difference:
    """Equality in every bit, up to a power of two."""
    wanted = rows.wanted * np.asarray(scale, rows.wanted.dtype)
    differ = differing_rows(rows.got, wanted)
    told = ""
    if differ.any():
        row = int(np.argmax(differ))
        got, due = (x[row].astype(np.float64).ravel() for x in (rows.got, wanted))
        apart = np.abs(got - due)
        lane = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
        told = f"{got[lane]:.9g} where the same bits as in {due[lane]:.9g} are due"
    return Difference(np.where(differ, np.inf, 0.0), told)


def _attention(evidence: Evidence, rerun: Rerun, name: str, rows: Rows) -> Difference:
    """Distance over the sum of the budgets of the two runs."""
    allowed = _budget(evidence, rerun, name)[rows.tokens]
    due = rows.wanted.astype(np.float64) + (rerun.variant.shift if name == "lse" else 0.0)
    got = rows.got.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(got == due, 0.0, np.abs(got - due) / allowed)
    share[np.isnan(share)] = np.inf
    at = np.unravel_index(int(np.argmax(share)), share.shape)
    told = f"{got[at]:.6g} where {due[at]:.6g} is due, {share[at]:.3g} times the budgets of both runs, head {at[1]}"
    return Difference(share.reshape(len(share), -1).max(axis=1), told)


def _budget(evidence: Evidence, rerun: Rerun, name: str) -> np.ndarray:
    """How far two correct kernels may be apart, for every token of the base."""
    assert evidence.base.outputs is not None and evidence.expected.attention is not None
    dtype = evidence.base.outputs["out"].dtype
    width = evidence.batch.ql_nope.shape[-1] + evidence.batch.q_pe.shape[-1]
    here, there = rerun.attention or (None, None)
    ours = attention_budget(there or evidence.expected.attention, dtype, width, evidence.promise)
    theirs = attention_budget(here or evidence.expected.attention, dtype, width, rerun.promise)
    return ours.element + theirs.element if name == "out" else ours.lse + theirs.lse


def _selection(evidence: Evidence, rows: Rows, exact: bool) -> Difference:
    """The same set; unless `exact`, candidates whose scores are within each other's rounding bands may swap."""
    got, wanted = np.sort(rows.got, axis=1), np.sort(rows.wanted, axis=1)
    share = np.where((got != wanted).any(axis=1), np.inf, 0.0)
    scores = evidence.expected.selection
    # Where scores are exact and the provider keeps equals in order of position, nothing may swap.
    if not exact and scores is not None and not (scores.exact and evidence.promise.lowest_tie):
        for row in np.flatnonzero(share):
            share[row] = _swap(scores, int(rows.tokens[row]), got[row], wanted[row], evidence.promise)
    row = int(np.argmax(share))
    told = f"{np.setdiff1d(got[row], wanted[row]).tolist()} where {np.setdiff1d(wanted[row], got[row]).tolist()} were"
    return Difference(share, told)


def _swap(scores: ScoredCandidates, token: int, got: np.ndarray, wanted: np.ndarray, promise: Promise) -> float:
    """The distance of the scores of what came and what went, over their rounding bands."""
    came, went = np.setdiff1d(got, wanted), np.setdiff1d(wanted, got)
    if len(came) != len(went) or (came < 0).any() or (went < 0).any():
        return float("inf")
    value, band = scores.value[token], score_band(scores, promise)[token]
    apart = np.abs(value[came][:, None] - value[went])
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.where(apart == 0.0, 0.0, apart / (band[came][:, None] + band[went])).max())


def _cache(evidence: Evidence, name: str, base: Mapping[str, np.ndarray], rerun: Rerun) -> int | None:
    """The first slot of the base whose row in a pool the variant left different."""
    left = rerun.runs[-1].outputs
    here = rerun.variant.slots >= 0
    if left is None or name not in base or name not in left or not here.any():
        return None
    there = rerun.variant.slots[here]
    got, wanted = (pool.reshape(len(here), -1) for pool in (left[name], base[name]))
    differ = differing_rows(got[here], wanted[there])
    if name == "index_cache":
        differ &= ~_near(evidence, got[here], wanted[there], there)
    return int(there[differ].min()) if differ.any() else None


def _near(evidence: Evidence, got: np.ndarray, wanted: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """bool[slots]: which rows are keys that were computed in this step, and within twice their budget of each other."""
    keys, batch = evidence.expected.keys, evidence.batch
    assert keys is not None
    token = np.full(batch.owned.size, -1)
    token[batch.out_cache_loc[batch.real]] = np.flatnonzero(batch.real)
    allowed = 2 * key_budget(keys, wanted.dtype)[token[slots]]
    apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    return (token[slots] >= 0) & (apart <= allowed).all(axis=1)
