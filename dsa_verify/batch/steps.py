"""Builds the steps of a variant: parts of a batch's sequences in chosen slots, with poison in memory nobody owns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsa_verify.batch.batch import BY_TOKEN, Batch
from dsa_verify.batch.poison import free_pages, poison_rows, poison_table
from dsa_verify.batch.requests import RESERVED_PAGE
from dsa_verify.batch.scenario import latent_rows

SEED = 7
"""Of poison and of the permutation of pages; any number other than the scenarios' own."""


@dataclass(frozen=True)
class VariantStep:
    """One step of a variant. tokens: i32[tokens], the base's token that each of its tokens repeats; -1 for none."""

    batch: Batch
    tokens: np.ndarray


@dataclass(frozen=True)
class SequencePart:
    """Some new tokens of one sequence of the base: the `first` to before the `last` of those it has in the step."""

    seq: int
    first: int
    last: int


def in_own_slots(batch: Batch, parts: Iterable[SequencePart]) -> list[SequencePart | None]:
    """Parts in the sequence slots that they have in the base, padding in all others."""
    filled: list[SequencePart | None] = [None] * batch.seqs
    for part in parts:
        filled[part.seq] = part
    return filled


def chain(batch: Batch, layouts: Iterable[Sequence[SequencePart | None]]) -> tuple[VariantStep, ...]:
    """Steps in which each sequence slot holds a part of a sequence of the base, or padding."""
    steps: list[VariantStep] = []
    for parts in layouts:
        done = [step.tokens[step.tokens >= 0] for step in steps]
        steps.append(_step(batch, parts, np.concatenate([*done, np.zeros(0, np.int32)])))
    return tuple(steps)


def _step(batch: Batch, parts: Sequence[SequencePart | None], done: np.ndarray) -> VariantStep:
    """The step with these parts in its sequence slots, after the tokens `done` of the base have been written."""
    empty = 1 if batch.mode == "decode" else 0
    given = [batch.cu_q_lens[p.seq] + np.arange(p.first, p.last) if p else np.full(empty, -1) for p in parts]
    tokens = np.concatenate(given).astype(np.int32)
    tokens = np.pad(tokens, (0, batch.tokens - len(tokens)), constant_values=-1)
    kv_lens = [batch.kv_lens[p.seq] - batch.q_lens[p.seq] + p.last if p else 0 for p in parts]
    finite = bool(np.isfinite(batch.cache_kv[RESERVED_PAGE].astype(np.float32)).all())

    def gathered(name: str) -> np.ndarray:
        rows = getattr(batch, name)[tokens]
        padding = tokens < 0
        if np.issubdtype(rows.dtype, np.integer):
            rows[padding] = -1
        else:
            poison = poison_rows(int(padding.sum()), rows[0].size, rows.dtype, finite, SEED)
            rows[padding] = poison.reshape(-1, *rows.shape[1:])
        return rows

    keys = batch.index_cache.reshape(-1, batch.index_cache.shape[-1]).copy()
    for part, kv_len in zip(parts, kv_lens, strict=True):
        if part:
            future = batch.slots(part.seq)[kv_len:]
            keys[future] = poison_rows(len(future), keys.shape[1], keys.dtype, finite, SEED)
    table = np.stack([batch.page_table[part.seq if part else 0] for part in parts])
    unused = [*free_pages(batch), batch.cache_kv.shape[0] + SEED]
    lens = np.array(kv_lens, np.int32)
    variant = replace(
        batch,
        kv_lens=lens,
        cu_q_lens=np.cumsum([0, *map(len, given)], dtype=np.int32),
        page_table=poison_table(table, lens, batch.page_size, unused, SEED),
        cache_kv=_written(batch, done),
        index_cache=keys.reshape(batch.index_cache.shape),
        **{name: gathered(name) for name in ("positions", "out_cache_loc", "topk_pages", *BY_TOKEN)},
    )
    return VariantStep(variant, tokens)


def _written(batch: Batch, tokens: np.ndarray) -> np.ndarray:
    """The latent pool after these tokens of the batch have been written."""
    cache = batch.cache_kv.copy()
    flat = cache.reshape(-1, cache.shape[-1])
    flat[batch.out_cache_loc[tokens]] = latent_rows(
        batch.new_c_kv[tokens], batch.new_k_pe[tokens], flat.shape[1], flat.dtype
    )
    return cache
