"""Structure of selections: the local window, sinks, and periodic diagonals.

A query at position q that selects position p selects the distance q - p; a diagonal of the heatmap is a distance that
many queries select, and its rate is the share of the queries that have this distance and select it.
"""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.special import fdtrc

from dsa_verify.profile.blocks import nearly_all, selected_by, sink_columns
from dsa_verify.profile.trace import Selections

LONGEST_PERIOD = 2048
REPEATS = 4
"""A period must fit this often into the distances: fewer repetitions are a coincidence of two or three diagonals."""

SMALLEST_SHARE = 0.01
"""Strides that explain less than a hundredth of all selections are not reported."""

MOST_STRIDES = 3

AGREEMENT = 0.5
"""Correlation that the folded rate of every other repetition must have with that of the repetitions between them."""

OUTSTANDING = 10
"""How many times as much as the upper quartile of unrelated periods a period must explain. What is no period scatters
around 0; if normally, ten quartiles are 6.7 deviations, and the highest of a few thousand is at 3.5."""

CHANCE = 1e-9
"""How likely a period may be if selections knew no distance; a few thousand periods are tried."""

HARMONICS = 0.7
"""Part of the folded rate's power that must lie in the multiples of one harmonic for that to be the period. Every other
harmonic of a single sharp diagonal holds half."""


@dataclass(frozen=True)
class Stride:
    """Diagonals at distances around `offset + n * period`, `width` tokens wide at half their height.

    period: whole, or a fraction where the diagonals keep no whole distance. share: of all selections, those on the
    diagonals beyond what the distances between them get.
    """

    period: float
    offset: int
    width: int
    share: float

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Structure:
    """What a window of queries selects, and the share of its selections that each pattern explains.

    local_window: nearly every query selects each of its last `local_window` positions, itself included.
    sinks: positions beyond it that nearly every query selects. median_distance: half of all selections are at most this
    far back. rate: by distance, beyond the local window without the sinks. columns: share of queries that selected each
    position.
    """

    local_window: int
    local_share: float
    sinks: np.ndarray
    sink_share: float
    strides: tuple[Stride, ...]
    median_distance: int
    rate: np.ndarray
    columns: np.ndarray


def structure(window: Selections) -> Structure:
    """Measure a window of queries at consecutive positions."""
    positions, topk = window.positions, window.topk
    chosen = topk >= 0
    total = max(1, int(chosen.sum()))
    reach = int(positions[-1]) + 1
    away = positions[:, None] - topk
    counts = np.bincount(away[chosen], minlength=reach)
    pairs = _pairs(positions)
    local = _leading(nearly_all(counts, pairs))
    columns = selected_by(window)
    sinks = sink_columns(columns, window, local)
    is_sink = np.zeros(reach, bool)
    is_sink[sinks] = True
    rest = chosen & (away >= local) & ~is_sink[topk]
    left, left_pairs = np.bincount(away[rest], minlength=reach), pairs - _sink_pairs(positions, sinks)
    left_pairs[:local] = 0
    return Structure(
        local_window=local,
        local_share=float(counts[:local].sum()) / total,
        sinks=sinks,
        sink_share=float(columns[sinks].sum()) / total,
        strides=strides(left, left_pairs, total),
        median_distance=int(np.searchsorted(np.cumsum(counts), total / 2)),
        rate=np.concatenate([_ratio(counts, pairs)[:local], _ratio(left, left_pairs)[local:]]),
        columns=columns / len(positions),
    )


def _pairs(positions: np.ndarray) -> np.ndarray:
    """How many queries have a position at each distance."""
    reach = int(positions[-1]) + 1
    return len(positions) - np.searchsorted(positions, np.arange(reach))


def _sink_pairs(positions: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    """How many queries have a sink at each distance; sinks are before every query, whose positions are consecutive."""
    edges = np.zeros(int(positions[-1]) + 2, np.int64)
    np.add.at(edges, positions[0] - sinks, 1)
    np.add.at(edges, positions[-1] - sinks + 1, -1)
    return np.cumsum(edges)[:-1]


def _leading(true: np.ndarray) -> int:
    """How many entries from the first on are true."""
    return len(true) if true.all() else int(np.argmin(true))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return part / np.maximum(whole, 1)


def strides(counts: np.ndarray, pairs: np.ndarray, total: int) -> tuple[Stride, ...]:
    """The periods in `counts` of selections by distance, where `pairs` could have selected it; strongest first.

    One at a time: what a period explains is taken out, and the rest is searched again.
    """
    found: list[Stride] = []
    counts = counts.astype(float)
    distances = np.arange(len(counts))
    while len(found) < MOST_STRIDES:
        period = _period(counts, pairs)
        if period is None:
            break
        phase = (distances % period).astype(int)
        folded = _ratio(np.bincount(phase, counts), np.bincount(phase, pairs))
        background = np.sort(folded)[: max(1, len(folded) // 2)].mean()
        teeth = folded > (background + folded.max()) / 2
        excess = (folded - background)[phase] * pairs
        share = float(excess[teeth[phase]].sum() / total)
        if share < SMALLEST_SHARE:
            break
        found.append(Stride(period, int(folded.argmax()), int(teeth.sum()), share))
        counts -= excess
    return tuple(found)


def _period(counts: np.ndarray, pairs: np.ndarray) -> float | None:
    """The period that explains most of how the rate varies with distance, or None if none stands out."""
    usable = np.flatnonzero(pairs)
    if not len(usable):
        return None
    part = slice(int(usable[0]), int(usable[-1]) + 1)
    rate = _ratio(counts[part], pairs[part])
    candidates = range(2, min(LONGEST_PERIOD, len(rate) // REPEATS) + 1)
    if not candidates or not rate.any():
        return None
    explained, agreement = np.array([_explained(_fold(rate, period)) for period in candidates]).T
    agreed = np.where(agreement > AGREEMENT, explained, 0)
    best = candidates[int(np.argmax(agreed))]
    unrelated = np.append(explained[np.gcd(candidates, best) == 1], 0)
    if agreed.max() <= max(OUTSTANDING * np.quantile(unrelated, 0.75), 1e-12):
        return None
    rows = _fold(rate, best)
    return _fundamental(rows) if _chance(rows) < CHANCE else None


def _fold(rate: np.ndarray, period: int) -> np.ndarray:
    """The rate's repetitions, one a row, without its trend: a moving average one period wide leaves any comb of that
    period as it is."""
    sums = np.concatenate([[0.0], np.cumsum(rate)])
    trend = (sums[period:] - sums[:-period]) / period
    level = rate[period // 2 :][: len(trend)] - trend
    rows = level[: len(level) // period * period].reshape(-1, period)
    return rows - rows.mean()


def _explained(rows: np.ndarray) -> tuple[float, float]:
    """Variance that the repetitions have in common, and how well every other one agrees with those between.

    What is in one repetition only, or differs from one to the next, adds nothing on average.
    """
    even, odd = rows[0::2].mean(axis=0), rows[1::2].mean(axis=0)
    common, size = float(even @ odd), float(np.sqrt((even @ even) * (odd @ odd)))
    return common / len(even), common / size if size else 0.0


def _chance(rows: np.ndarray) -> float:
    """How likely phases differ as much as they do where none is preferred: an analysis of variance."""
    count, period = rows.shape
    between = count * float(np.square(rows.mean(axis=0)).sum())
    within = float(np.square(rows - rows.mean(axis=0)).sum())
    freedom = (period - 1, rows.size - period)
    return float(fdtrc(*freedom, between / freedom[0] / (within / freedom[1]))) if within > 1e-9 * between else 0.0


def _fundamental(rows: np.ndarray) -> float:
    """The period within folded rows: a fraction of their length where they repeat in themselves.

    A multiple of the period explains as much as the period, and noise may favour it; 37.7 shows as 377 only.
    """
    count, period = rows.shape
    folded = rows.mean(axis=0)
    noise = float(np.square(rows - folded).sum()) / (rows.size - period) / count
    power = np.maximum(0, np.square(np.abs(np.fft.rfft(folded)))[1:] - period * noise)
    for harmonic in range(len(power), 1, -1):
        if power[harmonic - 1 :: harmonic].sum() > HARMONICS * power.sum():
            return period / harmonic
    return float(period)
