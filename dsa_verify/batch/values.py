"""Where the numbers come from: signal-bearing noise, exact ties, and real text."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.shapes import ModelShape

LATENT_SPREAD = 1.6
ROTARY_SPREAD = 1.2
"""Standard deviations of the two parts of the scaled logits. Together about 2: inside the range (1 to 3)
in which a wrong scale, a dropped rotary part or a foreign page moves the softmax by more than its budget."""

SIGNATURE = 0.6
"""Size of the vectors that mark a page and a request, against unit noise."""

# One independent random stream per array and sequence: SeedSequence([seed, stream, sequence, ...]).
LATENT, ROTARY, KEY, QUERY, QUERY_PE, INDEX_QUERY, WEIGHT, SELECT, TABLE, POISON, PAGE_MARK, REQUEST_MARK = range(12)
HIDDEN, Q_LORA, LOUDNESS, LAYER = range(12, 16)


def stream(seed: int, *path: int) -> np.random.Generator:
    """A random generator that no other (seed, path) shares."""
    return np.random.default_rng(np.random.SeedSequence([seed, *path]))


@dataclass(frozen=True)
class Content:
    """What one sequence holds, one row a position, float64 before rounding to the model's dtype."""

    c_kv: np.ndarray  # [kv_len, kv_lora_rank]
    k_pe: np.ndarray  # [kv_len, qk_rope_head_dim]
    index_k: np.ndarray  # [kv_len, index_head_dim]


@dataclass(frozen=True)
class Queries:
    """What the new tokens of one sequence ask."""

    ql_nope: np.ndarray  # [q_len, heads, kv_lora_rank]
    q_pe: np.ndarray  # [q_len, heads, qk_rope_head_dim]
    index_q: np.ndarray  # [q_len, index_n_heads, index_head_dim]
    index_weights: np.ndarray  # [q_len, index_n_heads]


class Signal:
    """Gaussian rows that carry the signature of their page and request."""

    exact_scores = False

    def content(self, shape: ModelShape, seed: int, seq: int, kv_len: int, page_size: int) -> Content:
        page = np.arange(kv_len) // page_size
        marks = stream(seed, PAGE_MARK, seq).standard_normal((kv_len // page_size + 1, shape.kv_lora_rank))
        mine = stream(seed, REQUEST_MARK, seq).standard_normal(shape.kv_lora_rank)
        noise = stream(seed, LATENT, seq).standard_normal((kv_len, shape.kv_lora_rank))
        return Content(
            c_kv=noise + SIGNATURE * (marks[page] + mine),
            k_pe=stream(seed, ROTARY, seq).standard_normal((kv_len, shape.qk_rope_head_dim)),
            index_k=stream(seed, KEY, seq).standard_normal((kv_len, shape.index_head_dim)),
        )

    def queries(self, shape: ModelShape, seed: int, seq: int, positions: np.ndarray) -> Queries:
        n = len(positions)
        latent_std = (1 + 2 * SIGNATURE**2) ** 0.5
        nope = LATENT_SPREAD / (shape.sm_scale * shape.kv_lora_rank**0.5 * latent_std)
        pe = ROTARY_SPREAD / (shape.sm_scale * shape.qk_rope_head_dim**0.5)
        draw = lambda what, *dims: stream(seed, what, seq).standard_normal((n, *dims))  # noqa: E731
        return Queries(
            ql_nope=nope * draw(QUERY, shape.heads, shape.kv_lora_rank),
            q_pe=pe * draw(QUERY_PE, shape.heads, shape.qk_rope_head_dim),
            index_q=draw(INDEX_QUERY, shape.index_n_heads, shape.index_head_dim),
            index_weights=draw(WEIGHT, shape.index_n_heads),
        )


class Ties(Signal):
    """Index scores that are small integers: exact in every dtype, with many ties at the cut.

    With `plateau` most keys are zero, so that nearly every score is exactly 0.0 and the cut falls inside
    a plateau wider than any buffer; otherwise scores take a handful of values.
    """

    exact_scores = True

    def __init__(self, plateau: bool) -> None:
        self.plateau = plateau

    def content(self, shape: ModelShape, seed: int, seq: int, kv_len: int, page_size: int) -> Content:
        base = super().content(shape, seed, seq, kv_len, page_size)
        rng = stream(seed, KEY, seq)
        keys = np.zeros((kv_len, shape.index_head_dim))
        if self.plateau:
            winners = rng.choice(kv_len, size=min(3, kv_len), replace=False)
            keys[winners, 0] = 1 + np.arange(len(winners))
        else:
            # Twice as large on odd pages, or every large page would hold the best score and all pages would tie.
            keys[:, :3] = rng.integers(-1, 2, (kv_len, 3)) * (1 + np.arange(kv_len) // page_size % 2)[:, None]
        return Content(base.c_kv, base.k_pe, keys)

    def queries(self, shape: ModelShape, seed: int, seq: int, positions: np.ndarray) -> Queries:
        base = super().queries(shape, seed, seq, positions)
        rng = stream(seed, INDEX_QUERY, seq)
        index_q = np.zeros_like(base.index_q)
        index_q[..., :3] = rng.integers(1, 3, index_q[..., :3].shape)
        # A negative head weight must act after the ReLU, so one head always has one. Where all are negative the best
        # scores are zeros, and -0.0 must not lose against 0.0.
        weights = rng.integers(1, 4, base.index_weights.shape).astype(float)
        weights[:, -1] = -1.0
        weights[2::3] = -np.abs(weights[2::3])
        return Queries(base.ql_nope, base.q_pe, index_q, weights)


class Document:
    """Real text: each word is a row of a fixed seeded table, so that repeated words repeat.

    A query asks for the earlier places of its own word, which gives selections the structure that a
    trained indexer has (recurring positions, local context) instead of the flatness of noise. Sequences
    start at different chapters' distance in the text.
    """

    exact_scores = False

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def _words(self, seq: int, kv_len: int) -> np.ndarray:
        ids = word_ids(self.path)
        if kv_len > len(ids):
            raise ConfigError(
                f"the document {self.path or 'shipped with dsa-verify'} has {len(ids)} words, a scenario needs "
                f"{kv_len}; give a longer text with --document"
            )
        start = (seq * 977) % (len(ids) - kv_len + 1)
        return ids[start : start + kv_len]

    def content(self, shape: ModelShape, seed: int, seq: int, kv_len: int, page_size: int) -> Content:
        ids = self._words(seq, kv_len)
        local = stream(seed, LATENT, seq).standard_normal((kv_len, shape.kv_lora_rank))
        return Content(
            c_kv=_embed(LATENT, shape.kv_lora_rank, ids) + 0.3 * local,
            k_pe=_rotated(_embed(ROTARY, shape.qk_rope_head_dim, ids), np.arange(kv_len)),
            index_k=_rotated(_embed(KEY, shape.index_head_dim, ids), np.arange(kv_len)),
        )

    def queries(self, shape: ModelShape, seed: int, seq: int, positions: np.ndarray) -> Queries:
        last = int(positions[-1]) + 1 if len(positions) else 0
        ids = self._words(seq, last)[positions] if last else np.zeros(0, int)
        noise = Signal().queries(shape, seed, seq, positions)
        nope = LATENT_SPREAD / (shape.sm_scale * shape.kv_lora_rank**0.5)
        pe = ROTARY_SPREAD / (shape.sm_scale * shape.qk_rope_head_dim**0.5)
        same = _embed(LATENT, shape.kv_lora_rank, ids)[:, None]
        turned = _rotated(_embed(ROTARY, shape.qk_rope_head_dim, ids), positions)[:, None]
        asked = _rotated(_embed(KEY, shape.index_head_dim, ids), positions)[:, None]
        return Queries(
            ql_nope=0.5 * (noise.ql_nope + nope * same),
            q_pe=0.5 * (noise.q_pe + pe * turned),
            index_q=0.5 * noise.index_q + asked,
            index_weights=np.abs(noise.index_weights) + 0.25,
        )


@cache
def word_ids(path: Path | None) -> np.ndarray:
    """The words of a text file as integers in order of first use; of the shipped excerpt by default."""
    if path is None:
        text = resources.files("dsa_verify.batch").joinpath("document.txt").read_text("utf-8")
    else:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the document {path}: {error}; expected a UTF-8 text file") from error
    table: dict[str, int] = {}
    return np.array([table.setdefault(word.strip(".,;:!?\"'()_-").lower(), len(table)) for word in text.split()])


def _embed(what: int, width: int, ids: np.ndarray) -> np.ndarray:
    unique, inverse = np.unique(ids, return_inverse=True)
    rows = [stream(2048, TABLE, what, int(word)).standard_normal(width) for word in unique]
    return np.array(rows).reshape(len(unique), width)[inverse]


def _rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotary embedding, half-split pairs, base 10,000: nearby repeats score higher than far ones."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * 10_000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)
