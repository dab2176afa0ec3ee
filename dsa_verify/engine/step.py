"""Step: one ragged step as arrays of a static shape; and Runner, the protocol of a model that an engine drives.

It is a `dsa_verify.batch.ragged.RaggedStep` without caches and values, which belong to the runner.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dsa_verify.batch.ragged import PADDING, due_places, mode_of, written_by_another
from dsa_verify.batch.requests import RESERVED_PAGE, page_count
from dsa_verify.errors import EngineError


@dataclass(frozen=True, eq=False)
class Step:
    """What one call of the model works on; it refuses to exist when it contradicts itself.

    Page 0 is never mapped; the last page of the pool is an ordinary one. In mode `decode` every sequence slot carries
    exactly one token, padding slots a padding token. In the other modes padding sequences carry none, and padding
    tokens stand at the end. A decode in a `mixed` step is an extend by one token. All arrays are int32.
    """

    page_size: int
    tokens: np.ndarray  # i32[tokens]; 0 for padding
    kv_lens: np.ndarray  # i32[seqs]; with this step's tokens, 0 for padding
    cu_q_lens: np.ndarray  # i32[seqs + 1]
    page_table: np.ndarray  # i32[seqs, pages_per_seq]; unused entries are 0
    positions: np.ndarray  # i32[tokens]; -1 for padding
    out_cache_loc: np.ndarray  # i32[tokens]; page * page_size + offset, -1 for padding
    mode: str  # decode, extend or mixed; what `ragged.mode_of` says

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise EngineError(f"inconsistent step: {problem}")
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def seqs(self) -> int:
        return len(self.kv_lens)

    @property
    def q_lens(self) -> np.ndarray:
        return np.diff(self.cu_q_lens)


class Runner(Protocol):
    """A model over paged caches that it owns; one engine drives it at a time."""

    @property
    def page_size(self) -> int: ...

    @property
    def pool_pages(self) -> int:
        """Pages of the pool, the reserved one included."""
        ...

    @property
    def vocab_size(self) -> int: ...

    def run(self, step: Step) -> np.ndarray:
        """Writes the step's tokens to the caches; f32[seqs, vocab_size], logits after the last token of each sequence.

        Rows of padding sequences are undefined.
        """
        ...


def _problems(s: Step):
    """Every contradiction in a step, most basic first; the first one is reported."""
    yield from _shape_problems(s)
    yield from _length_problems(s)
    yield from _table_problems(s)
    yield from _token_problems(s)


def _shape_problems(s: Step):
    tokens, seqs = len(s.tokens), s.seqs
    expected = {
        "tokens": (tokens,),
        "kv_lens": (seqs,),
        "cu_q_lens": (seqs + 1,),
        "page_table": (seqs, s.page_table.shape[-1]),
        "positions": (tokens,),
        "out_cache_loc": (tokens,),
    }
    for name, shape in expected.items():
        found = getattr(s, name)
        if found.shape != shape or found.dtype != np.int32:
            yield f"{name} is {found.dtype}{list(found.shape)}, expected int32{list(shape)}"


def _length_problems(s: Step):
    q_lens, longest = s.q_lens, s.page_table.shape[1] * s.page_size
    if s.cu_q_lens[0] != 0 or (q_lens < 0).any() or s.cu_q_lens[-1] > len(s.tokens):
        yield f"cu_q_lens {s.cu_q_lens.tolist()} must rise from 0 to at most {len(s.tokens)} tokens"
    mode = mode_of(len(s.tokens), q_lens, s.kv_lens)
    if s.mode != mode:
        yield f"mode is {s.mode!r}, but lengths {q_lens.tolist()} in {len(s.tokens)} tokens make it {mode!r}"
    for seq, (kv_len, q_len) in enumerate(zip(s.kv_lens.tolist(), q_lens.tolist(), strict=True)):
        if kv_len == 0 and q_len != (mode == "decode"):
            yield f"padding sequence {seq} carries {q_len} tokens in mode {mode}"
        if kv_len != 0 and not 1 <= q_len <= kv_len <= longest:
            yield f"sequence {seq} has q_len {q_len} and kv_len {kv_len}, expected 1 <= q_len <= kv_len <= {longest}"


def _table_problems(s: Step):
    for seq, kv_len in enumerate(s.kv_lens.tolist()):
        count = page_count(kv_len, s.page_size)
        used, unused = s.page_table[seq, :count].tolist(), s.page_table[seq, count:]
        if min(used, default=1) <= RESERVED_PAGE or len(set(used)) != len(used):
            yield f"sequence {seq} maps pages {used}, expected distinct pages above {RESERVED_PAGE}"
        if unused.any():
            yield f"page_table[{seq}, {count}:] is {unused.tolist()}, expected zeros: {kv_len} tokens use {count} pages"
    yield from written_by_another(s)


def _token_problems(s: Step):
    positions, locations = due_places(s)
    for name, expected in (("positions", positions), ("out_cache_loc", locations)):
        found = getattr(s, name)
        for at in np.flatnonzero(found != expected)[:1]:
            yield f"{name}[{at}] is {found[at]}, expected {expected[at]}"
    if (s.tokens < 0).any() or s.tokens[positions == PADDING].any():
        yield f"tokens {s.tokens.tolist()} must be at least 0, and 0 for padding"
