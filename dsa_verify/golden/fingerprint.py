"""Fingerprint of a float array in few numbers: signed sums that a change of any element must move, and some elements.

Notation: x is an output of the oracle, [tokens, ...], n elements a token. s is a vector of independent fair signs,
fixed for ever. `rows` keeps <s_k, x[t]> for every token t and TOKEN_SIGNS vectors s_k; `whole` keeps <s_k, x> for
WHOLE_SIGNS more. Both are compared within `tolerance` T, which also bounds the noise between two machines.

What is guaranteed. Let d be the change of x, chosen without regard to the signs, with |d_i| > 2 T at some element i, so
that noise cannot hide it.

1. If d is zero elsewhere, every sum over i moves by exactly |d_i|: it is detected for certain, and at its token.
2. Whatever else changes: given all signs but s_i, the two values that <s, d> can take are 2 |d_i| > 4 T apart, so at
   most one of them is within 2 T. One vector misses d with probability at most 1/2, and all of them, being
   independent, with probability at most 2^-(TOKEN_SIGNS + WHOLE_SIGNS) = 2^-18.

T is far below what a kernel may be off by. The oracle is a kernel whose unit roundoff is 2^-53 instead of 2^-24, so the
derivation in `checks/tolerance.py` bounds what two machines' oracles may differ by: 2^-29 times the float32 budget of
each element, on either side, summed over the elements as if all agreed in sign. To this comes the rounding of the sums
to DIGITS significant digits, once on either side. `least_budget` is the smallest float32 budget of any element;
`tests/golden/` holds 2 T below it in every record.
"""

import numpy as np

DIGITS = 12
TOKEN_SIGNS, WHOLE_SIGNS, SAMPLES = 2, 16, 16
ORACLE_ROUNDOFF = 2.0**-29
"""Unit roundoff of the oracle (float64) over that of a float32 kernel."""


def fingerprint(x: np.ndarray, budget: np.ndarray) -> dict[str, object]:
    """Fingerprint of f64[tokens, ...].

    Args:
      x: the array; -inf (the lse of nothing) is counted in `empty` and taken as zero.
      budget: like x, how far a float32 kernel may be off.
    """
    empty = np.isneginf(x)
    rows = np.where(empty, 0.0, x).reshape(len(x), -1)
    per_token = rows @ signs("token", TOKEN_SIGNS, rows.shape[1]).T
    whole = signs("whole", WHOLE_SIGNS, rows.size) @ rows.ravel()
    largest = max(np.abs(per_token).max(initial=0.0), np.abs(whole).max(initial=0.0))
    tolerance = 2 * ORACLE_ROUNDOFF * float(budget.sum()) + 10.0 ** (1 - DIGITS) * float(largest)
    budgets = budget[budget > 0]
    at = np.unique(raw("sample", SAMPLES) % rows.size)
    places = (",".join(str(int(i)) for i in np.unravel_index(int(flat), x.shape)) for flat in at)
    return {
        "shape": list(x.shape),
        "empty": int(empty.sum()),
        "rows": [[number(v) for v in row] for row in per_token.tolist()],
        "whole": [number(v) for v in whole.tolist()],
        "samples": {place: number(float(rows.ravel()[flat])) for place, flat in zip(places, at, strict=True)},
        "tolerance": number(float(tolerance), 3),
        "least_budget": number(float(budgets.min()), 3) if len(budgets) else None,
    }


def number(value: float, digits: int = DIGITS) -> float:
    """A float rounded to some significant digits, without negative zero."""
    return float(f"{float(value):.{digits}g}") + 0.0


def raw(purpose: str, count: int) -> np.ndarray:
    """Random 64-bit words that are the same for ever: NumPy freezes what a bit generator yields, not what is drawn
    from it."""
    return np.random.PCG64(int.from_bytes(purpose.encode())).random_raw(count)


def signs(purpose: str, vectors: int, length: int) -> np.ndarray:
    """f64[vectors, length] of -1 and 1."""
    words = raw(purpose, vectors * (-(-length // 64))).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8)).reshape(vectors, -1)[:, :length]
    return bits * 2.0 - 1.0
