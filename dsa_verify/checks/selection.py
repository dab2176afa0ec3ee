"""Selection: the chosen set is the best one, distinct, causal and without holes; only near-ties may swap."""

from collections.abc import Mapping

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.checks import describe
from dsa_verify.checks.tolerance import score_band
from dsa_verify.contract import Promise
from dsa_verify.evidence import Evidence, ScoredCandidates, Verdict


def judge(evidence: Evidence) -> Verdict:
    """Judge the chosen positions or pages of every token.

    What it demands: exactly min(budget, candidates) distinct causal choices, then -1; no unchosen candidate better
    than a chosen one by more than the rounding band of both scores; where scores are exact, the lowest
    candidates among equals; scores that come with the choices, within their band. An approximate provider is held to
    its stated recall instead of to every choice.
    Why it matters: a wrong token attended to, or a right one left out, is invisible in short evaluations.
    How it could be fooled: by rows with no more candidates than the budget; scenarios state that they have more.
    """
    outputs, exact, batch = evidence.base.outputs, evidence.expected.selection, evidence.batch
    if outputs is None:
        return Verdict.rejected("the kernel failed and returned nothing; see the races check for its message")
    assert exact is not None
    chosen = chosen_by(outputs)
    problem = _malformed(batch, chosen, exact)
    if problem:
        return Verdict.rejected(problem)
    if evidence.promise.recall < 1.0:
        return _judge_recall(chosen, exact, evidence.promise)
    if exact.exact:
        return _judge_exactly(batch, chosen, exact, evidence.promise)
    verdict = _judge_within_band(batch, chosen, exact, evidence.promise)
    told = outputs.get("topk_scores")
    if told is None or verdict.status == "rejected":
        return verdict
    return _judge_scores(batch, chosen, told, exact, evidence.promise)


def chosen_by(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The positions or pages among the outputs of a surface that selects."""
    return next(outputs[name] for name in ("topk_indices", "topk_pages") if name in outputs)


def _malformed(batch: Batch, chosen: np.ndarray, exact: ScoredCandidates) -> str | None:
    if chosen.shape != exact.best.shape:
        return f"the selection has shape {chosen.shape}, expected {exact.best.shape}"
    if not np.issubdtype(chosen.dtype, np.integer):
        return f"the selection is {chosen.dtype}, expected an integer dtype"
    wanted = (exact.best >= 0).sum(axis=1)
    for row, (mine, count) in enumerate(zip(chosen.tolist(), wanted.tolist(), strict=True)):
        head, tail = mine[:count], mine[count:]
        place = describe.token(batch, row)
        if any(c != -1 for c in tail):
            return f"{place}: {mine} keeps more than its {count} candidates; the tail must be -1"
        if any(not 0 <= c < exact.value.shape[1] for c in head):
            return f"{place}: {head} has holes or is out of range; {count} candidates must come first"
        if len(set(head)) < count:
            return f"{place}: {head} names a candidate twice"
        future = [c for c in head if exact.value[row, c] == -np.inf]
        if future:
            return f"{place}: candidates {future} lie in the future or past the end of the sequence"
    return None


def _masks(chosen: np.ndarray, exact: ScoredCandidates) -> tuple[np.ndarray, np.ndarray]:
    """Which candidates are chosen, and which are candidates but not chosen."""
    mine = np.zeros((len(chosen), exact.value.shape[1] + 1), bool)
    np.put_along_axis(mine, np.where(chosen < 0, exact.value.shape[1], chosen), True, axis=1)
    mine = mine[:, :-1]
    return mine, ~mine & (exact.value > -np.inf)


def _judge_within_band(batch: Batch, chosen: np.ndarray, exact: ScoredCandidates, promise: Promise) -> Verdict:
    band = score_band(exact, promise)
    mine, others = _masks(chosen, exact)
    problem = _disordered_zeros(batch, mine, exact) if promise.lowest_tie else None
    if problem:
        return Verdict.rejected(problem, float("inf"))
    kept = np.where(mine, exact.value, np.inf)
    left = np.where(others, exact.value, -np.inf)
    worst, best = kept.argmin(axis=1), left.argmax(axis=1)
    rows = np.flatnonzero(mine.any(axis=1) & others.any(axis=1))
    if not len(rows):
        return Verdict.accepted(0.0)
    gap = left[rows, best[rows]] - kept[rows, worst[rows]]
    allowed = band[rows, best[rows]] + band[rows, worst[rows]]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(gap <= 0.0, 0.0, gap / allowed)
    at = int(share.argmax())
    if share[at] <= 1.0:
        return Verdict.accepted(float(share[at]))
    row = int(rows[at])
    return Verdict.rejected(
        f"{describe.token(batch, row)} keeps candidate {worst[row]} (score {kept[row, worst[row]]:.6g}) and leaves "
        f"{best[row]} (score {left[row, best[row]]:.6g}): {share[at]:.3g} times the rounding band apart; "
        f"{describe.spread(batch, rows[share > 1.0])}",
        float(share[at]),
    )


def _disordered_zeros(batch: Batch, mine: np.ndarray, exact: ScoredCandidates) -> str | None:
    """Scores without a single product that is not zero are 0 in every dtype: the lowest of them come first."""
    due, undue = zeros_out_of_order(mine, exact)
    rows = np.flatnonzero(due.any(axis=1))
    if not len(rows):
        return None
    row = int(rows[0])
    extra, missed = np.flatnonzero(undue[row]), np.flatnonzero(due[row])
    return (
        f"{describe.token(batch, row)} keeps {extra.tolist()} where {missed.tolist()} are due: the scores of both are "
        f"exactly 0, and ties go to the lowest position; {describe.spread(batch, rows)}"
    )


def zeros_out_of_order(mine: np.ndarray, exact: ScoredCandidates) -> tuple[np.ndarray, np.ndarray]:
    """bool[tokens, candidates] twice: of the candidates whose score is exactly 0, those that are due in the place of
    chosen ones because they are lower, and these. `mine`: which are chosen."""
    zero = (exact.magnitude == 0.0) & (exact.value > -np.inf)
    due = zero & (np.cumsum(zero, axis=1) <= (mine & zero).sum(axis=1, keepdims=True))
    return due & ~mine, mine & zero & ~due


def _judge_scores(
    batch: Batch, chosen: np.ndarray, told: np.ndarray, exact: ScoredCandidates, promise: Promise
) -> Verdict:
    """The score that a kernel tells of each choice; -inf where there is none."""
    none, at = chosen < 0, np.maximum(chosen, 0)
    due = np.where(none, -np.inf, np.take_along_axis(exact.value, at, axis=1))
    allowed = np.take_along_axis(score_band(exact, promise), at, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(told == due, 0.0, np.abs(told - due) / np.where(none, 0.0, allowed))
    share[np.isnan(share)] = np.inf
    worst = float(share.max(initial=0.0))
    if worst <= 1.0:
        return Verdict.accepted(worst)
    row, column = np.unravel_index(int(share.argmax()), share.shape)
    return Verdict.rejected(
        f"{describe.token(batch, int(row))} gives candidate {chosen[row, column]} the score {told[row, column]:.6g}, "
        f"oracle {due[row, column]:.6g}: {worst:.3g} times the rounding band apart; "
        f"{describe.spread(batch, np.flatnonzero((share > 1.0).any(axis=1)))}",
        worst,
    )


def _judge_exactly(batch: Batch, chosen: np.ndarray, exact: ScoredCandidates, promise: Promise) -> Verdict:
    mine, _ = _masks(chosen, exact)
    best, _ = _masks(exact.best, exact)
    if promise.lowest_tie:
        wrong = mine != best
    else:
        # Any choice among equals at the cut will do: compare scores, not candidates.
        ordered = [np.sort(np.where(m, exact.value, -np.inf), axis=1) for m in (mine, best)]
        wrong = ordered[0] != ordered[1]
    rows = np.flatnonzero(wrong.any(axis=1))
    if not len(rows):
        return Verdict.accepted(0.0)
    row = int(rows[0])
    extra, missed = np.flatnonzero(mine[row] & ~best[row]), np.flatnonzero(best[row] & ~mine[row])
    return Verdict.rejected(
        f"{describe.token(batch, row)} keeps {extra.tolist()} (scores {exact.value[row, extra].tolist()}) where "
        f"{missed.tolist()} (scores {exact.value[row, missed].tolist()}) are due; scores are exact here and ties go to "
        f"the lowest position; {describe.spread(batch, rows)}",
        float("inf"),
    )


def _judge_recall(chosen: np.ndarray, exact: ScoredCandidates, promise: Promise) -> Verdict:
    mine, _ = _masks(chosen, exact)
    best, _ = _masks(exact.best, exact)
    rows = best.any(axis=1)
    recall = (mine & best)[rows].sum() / max(1, best[rows].sum())
    if recall >= promise.recall:
        return Verdict.accepted()
    return Verdict.rejected(f"recall is {recall:.4f} over {rows.sum()} rows, the provider states {promise.recall}")
