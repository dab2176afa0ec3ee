"""Where a rejection lies, as a small grid of characters: query tokens against positions, pages or heads."""

from collections.abc import Iterable

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.checks.parity import shares_of
from dsa_verify.checks.selection import chosen_by, zeros_out_of_order
from dsa_verify.checks.tolerance import score_band
from dsa_verify.contract import Promise
from dsa_verify.evidence import Evidence, Heatmap, HeatmapRow, ScoredCandidates

ROWS, COLUMNS = 16, 192
"""Most query tokens and cells of one heatmap: enough to see a pattern, and below 8 KB of JSON, so that a run in which
every case is rejected is still a file that a CI job uploads. 192 cells of 2 pixels are what a phone shows at once."""

SELECTION = ".=-m+pxb "
"""Cells of a selection, by the bits 1 (kept, as due), 2 (due and missing), 4 (kept and not due); a cell of several
candidates may have all of them. The last, a space: no candidate of this query."""

SHARE = ".123!"
"""Cells of shares of an error budget: within it, above 1, 10, 100 times it, infinite or not a number."""


def of_selection(evidence: Evidence) -> Heatmap | None:
    """What each faulty query chose beside what was due, near-ties aside; None where no single choice is wrong."""
    outputs, exact = evidence.base.outputs, evidence.expected.selection
    if outputs is None or exact is None:
        return None
    chosen = chosen_by(outputs)
    if chosen.shape != exact.best.shape or not np.issubdtype(chosen.dtype, np.integer):
        return None
    mine, best = _marks(chosen, exact), _marks(exact.best, exact)
    missing, extra = _wrong(mine, best, exact, evidence.promise)
    odd = (chosen >= 0).sum(axis=1) - mine.sum(axis=1) + (chosen < -1).sum(axis=1)
    faulty = np.flatnonzero((missing | extra).any(axis=1) | (odd > 0))
    if not len(faulty):
        return None
    rows, causal = _some(faulty), exact.value > -np.inf
    bits = (mine & ~extra) * 1 + missing * 2 + extra * 4
    shown = (bits[rows] > 0) | causal[rows]
    stop = int(np.flatnonzero(shown.any(axis=0)).max(initial=0)) + 1
    width = _width(stop)
    binned = np.bitwise_or.reduce(_cells(bits[rows, :stop], width), axis=2)
    there = _cells(shown[:, :stop], width).any(axis=2)
    column = "position" if "topk_indices" in outputs else "page"
    notes = (_choices(column, missing[row], extra[row], causal[row], int(odd[row])) for row in rows)
    codes = np.where(there, binned, len(SELECTION) - 1)
    cells = ("".join(SELECTION[code] for code in row) for row in codes.tolist())
    drawn = _drawn(evidence.batch, zip(rows, cells, notes, strict=True))
    return Heatmap("selection", column, width, len(faulty), int(evidence.batch.real.sum()), drawn)


def of_shares(evidence: Evidence) -> Heatmap | None:
    """Largest share of the error budget of each head of the faulty queries; None where each by itself is within it."""
    outputs, exact, batch = evidence.base.outputs, evidence.expected.attention, evidence.batch
    if outputs is None or exact is None or not batch.real.any():
        return None
    with np.errstate(all="ignore"):  # outputs may be NaN or infinite: that is what is shown
        found, _, _ = shares_of(batch, outputs, exact, evidence.promise)
    heads = np.max([share.reshape(*share.shape[:2], -1).max(axis=2) for share in found.values()], axis=0)
    heads = np.where(np.isnan(heads), np.inf, heads)
    faulty = np.flatnonzero((heads > 1.0).any(axis=1))
    if not len(faulty):
        return None
    rows, width = _some(faulty), _width(heads.shape[1])
    levels = np.sum([*(heads[rows] > bound for bound in (1.0, 10.0, 100.0)), np.isinf(heads[rows])], axis=0)
    binned = _cells(levels, width).max(axis=2)
    cells = ("".join(SHARE[level] for level in row) for row in binned.tolist())
    notes = (_heads(heads[row]) for row in rows)
    drawn = _drawn(batch, zip(rows, cells, notes, strict=True))
    return Heatmap("share", "head", width, len(faulty), int(batch.real.sum()), drawn)


def _marks(chosen: np.ndarray, exact: ScoredCandidates) -> np.ndarray:
    """bool[tokens, candidates]: which candidates are named; those that do not exist are left out."""
    there = (chosen >= 0) & (chosen < exact.value.shape[1])
    found = np.zeros(exact.value.shape, bool)
    found[np.nonzero(there)[0], chosen[there]] = True
    return found


def _wrong(
    mine: np.ndarray, best: np.ndarray, exact: ScoredCandidates, promise: Promise
) -> tuple[np.ndarray, np.ndarray]:
    """What is due and missing, and what is chosen and not due, as the selection check judges it: an exchange within
    the rounding band of both scores is none, unless scores are exact and ties have an order."""
    missing, extra = best & ~mine, mine & ~best
    if promise.recall < 1.0 or (exact.exact and promise.lowest_tie):
        return missing, extra
    causal, rows = exact.value > -np.inf, np.arange(len(mine))
    band = np.zeros_like(exact.value) if exact.exact else score_band(exact, promise)
    kept = np.where(mine & causal, exact.value, np.inf)
    left = np.where(causal & ~mine, exact.value, -np.inf)
    worst, next_best = kept.argmin(axis=1), left.argmax(axis=1)
    with np.errstate(invalid="ignore"):
        above = exact.value - kept[rows, worst, None] > band + band[rows, worst, None]
        below = left[rows, next_best, None] - exact.value > band + band[rows, next_best, None]
    few = ((mine & causal).sum(axis=1) < best.sum(axis=1))[:, None]
    late, early = zeros_out_of_order(mine, exact) if promise.lowest_tie else (False, False)
    return (missing & (above | few)) | late, (extra & (below | ~causal)) | early


def _some(faulty: np.ndarray) -> np.ndarray:
    """At most `ROWS` of the faulty tokens, the first and the last among them."""
    return faulty[np.unique(np.linspace(0, len(faulty) - 1, min(ROWS, len(faulty))).round().astype(int))]


def _width(columns: int) -> int:
    """Columns a cell: the smallest power of two, so that cells end where pages do, that leaves at most `COLUMNS`."""
    width = 1
    while columns > COLUMNS * width:
        width *= 2
    return width


def _cells(grid: np.ndarray, width: int) -> np.ndarray:
    """[rows, columns] as [rows, cells, width], filled up with zeros."""
    grid = np.pad(grid, ((0, 0), (0, -grid.shape[1] % width)))
    return grid.reshape(len(grid), -1, width)


def _choices(column: str, missing: np.ndarray, extra: np.ndarray, causal: np.ndarray, odd: int) -> str:
    wrong = np.flatnonzero(missing | extra)
    parts = [f"{missing.sum()} expected and missing", f"{extra.sum()} kept and not expected"]
    if future := int((extra & ~causal).sum()):
        parts.append(f"{future} of them no candidate")
    if odd:
        parts.append(f"{odd} named twice or out of range")
    return ", ".join(parts) + (f"; first at {column} {wrong[0]}" if len(wrong) else "")


def _heads(shares: np.ndarray) -> str:
    over = np.flatnonzero(shares > 1.0)
    names = ", ".join(str(head) for head in over[:8]) + (f" and {len(over) - 8} more" if len(over) > 8 else "")
    return f"head{'s' if len(over) > 1 else ''} {names} above budget, up to {shares.max():.3g} times"


def _drawn(batch: Batch, rows: Iterable[tuple[int, str, str]]) -> tuple[HeatmapRow, ...]:
    return tuple(
        HeatmapRow(int(batch.seq_of_token[row]), int(batch.positions[row]), cells, note) for row, cells, note in rows
    )
