"""Variants: the same work asked for in another way, in the same static shapes; the answer must stay the same."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.batch.poison import free_pages, poison_table
from dsa_verify.batch.requests import RESERVED_PAGE, page_count
from dsa_verify.batch.steps import SEED, SequencePart, VariantStep, chain, in_own_slots
from dsa_verify.batch.values import TABLE, stream
from dsa_verify.shapes import LANES, align

VALUE_SCALE = 4.0
WEIGHT_SCALE = 1024.0
"""Powers of two: scaling by them commutes with every rounding. Values stay small enough for bfloat16 sums, index
scores become larger than the finite stand-ins for -inf that kernels use."""

LANE_QUERY, LANE_KEY = 32.0, -64.0
"""What the last rotary lane holds in a shift: exact in bfloat16, and sm_scale * their product is about -180 (-128 at
the real models' scales), below -104, where exp is zero in float32 for whoever does not subtract the maximum."""


@dataclass(frozen=True)
class Variant:
    """The same work in another way.

    steps: run one after another; where the surface writes, each finds the cache that the one before it left.
    slots: i32[pages * page_size], the base's slot whose row each slot of the pool must hold in the end; -1 for any row.
    surface: whose kernel, of the same provider, takes the steps; None for the surface in question.
    scale: attention outputs are the base's times this.
    shift: what is added to every logit, and so to lse.
    reference: a batch whose run takes the place of the base's, where the base cannot be compared with.
    """

    steps: tuple[VariantStep, ...]
    slots: np.ndarray
    surface: str | None = None
    scale: float = 1.0
    shift: float = 0.0
    reference: Batch | None = None


def split(batch: Batch) -> Variant | None:
    """Every chunk in up to three steps: cut once inside a page, and once on a page boundary where it has one."""
    pieces = [_pieces(batch, int(seq)) for seq in _requests(batch)]
    steps = max((len(parts) for parts in pieces), default=0)
    if steps < 2:
        return None
    layouts = [in_own_slots(batch, (parts[n] for parts in pieces if n < len(parts))) for n in range(steps)]
    return Variant(chain(batch, layouts), _same_slots(batch))


def composition(batch: Batch) -> Variant | None:
    """One request after another, each alone in its step, in the first sequence slot and from the first token on."""
    requests = [seq for seq in _requests(batch) if batch.q_lens[seq]]
    if len(_requests(batch)) < 2 or not requests:
        return None
    empty = [None] * (batch.seqs - 1)
    return Variant(chain(batch, [[_whole(batch, seq), *empty] for seq in requests]), _same_slots(batch))


def order(batch: Batch) -> Variant | None:
    """Every request in the slot of the one before it, the first in that of the last; padding stays where it is."""
    requests = _requests(batch)
    if len(requests) < 2:
        return None
    parts: list[SequencePart | None] = [None] * batch.seqs
    for slot, seq in zip(requests, np.roll(requests, -1), strict=True):
        parts[slot] = _whole(batch, int(seq))
    return Variant(chain(batch, [parts]), _same_slots(batch))


def padding(batch: Batch) -> Variant | None:
    """A padding sequence before every request, as long as there are any; the rest of them at the end."""
    requests = _requests(batch)
    room = batch.seqs - len(requests)
    if not len(requests) or not room:
        return None
    parts: list[SequencePart | None] = []
    for n, seq in enumerate(requests):
        parts += [None, _whole(batch, seq)] if n < room else [_whole(batch, seq)]
    return Variant(chain(batch, [parts + [None] * (batch.seqs - len(parts))]), _same_slots(batch))


def pages(batch: Batch) -> Variant | None:
    """All pages of the pool but page 0 in other places; tables, slots and both caches move along.

    The first page that is written becomes the last one of the pool.
    """
    if not batch.real.any():
        return None
    count, size = batch.cache_kv.shape[0], batch.page_size
    source = np.arange(count)
    source[1:] = stream(SEED, TABLE).permutation(source[1:])
    written = int(np.flatnonzero(source == batch.out_cache_loc[batch.real][0] // size)[0])
    source[[written, -1]] = source[[-1, written]]
    moved = np.argsort(source).astype(np.int32)
    in_pool = (batch.page_table >= 0) & (batch.page_table < count)
    loc = batch.out_cache_loc
    variant = batch.replace(
        cache_kv=batch.cache_kv[source],
        index_cache=batch.index_cache[source],
        page_table=np.where(in_pool, moved[np.where(in_pool, batch.page_table, 0)], batch.page_table),
        out_cache_loc=np.where(loc >= 0, moved[loc // size] * size + loc % size, -1).astype(np.int32),
    )
    return Variant((VariantStep(variant, _same_tokens(batch)),), _slots_of_pages(batch, source, variant.owned))


def prefix(batch: Batch) -> Variant | None:
    """No page is shared: a request that maps pages of an earlier one gets copies, as if it had computed them itself."""
    free = [page for page in free_pages(batch) if page != RESERVED_PAGE]
    table, source = batch.page_table.copy(), np.arange(batch.cache_kv.shape[0])
    seen: set[int] = set()
    for seq in _requests(batch):
        for at in range(page_count(int(batch.kv_lens[seq]), batch.page_size)):
            page = int(table[seq, at])
            if page in seen:
                if not free:
                    return None
                table[seq, at] = free.pop()
                source[table[seq, at]] = page
            seen.add(page)
    if (table == batch.page_table).all():
        return None
    poison = [RESERVED_PAGE, *free, len(source) + SEED]
    variant = batch.replace(
        cache_kv=batch.cache_kv[source],
        index_cache=batch.index_cache[source],
        page_table=poison_table(table, batch.kv_lens, batch.page_size, poison, SEED),
    )
    return Variant((VariantStep(variant, _same_tokens(batch)),), _slots_of_pages(batch, source, variant.owned))


def scaling(batch: Batch) -> Variant | None:
    """Latents times a power of two and latent queries divided by it; index weights times another."""
    if not batch.real.any():
        return None
    rank = batch.ql_nope.shape[-1]
    cache = batch.cache_kv.copy()
    cache[..., :rank] *= np.asarray(VALUE_SCALE, cache.dtype)
    variant = batch.replace(
        cache_kv=cache,
        new_c_kv=batch.new_c_kv * np.asarray(VALUE_SCALE, cache.dtype),
        ql_nope=batch.ql_nope / np.asarray(VALUE_SCALE, cache.dtype),
        index_weights=batch.index_weights * np.float32(WEIGHT_SCALE),
    )
    return Variant((VariantStep(variant, _same_tokens(batch)),), np.full(batch.owned.size, -1), scale=VALUE_SCALE)


def shift(batch: Batch) -> Variant | None:
    """The last rotary lane is constant in all queries and in all keys; in the keys of the reference it is zero."""
    if not batch.real.any():
        return None
    rank, rope = batch.ql_nope.shape[-1], batch.q_pe.shape[-1]
    cached = batch.owned.copy()
    cached[batch.out_cache_loc[batch.real]] = False

    def with_lane(key: float) -> Batch:
        cache, q_pe, new = batch.cache_kv.copy(), batch.q_pe.copy(), batch.new_k_pe.copy()
        cache.reshape(len(cached), -1)[cached, align(rank, LANES) + rope - 1] = key
        q_pe[batch.real, :, -1] = LANE_QUERY
        new[batch.real, -1] = key
        return batch.replace(cache_kv=cache, q_pe=q_pe, new_k_pe=new)

    return Variant(
        (VariantStep(with_lane(LANE_KEY), _same_tokens(batch)),),
        np.full(batch.owned.size, -1),
        shift=batch.sm_scale * LANE_QUERY * LANE_KEY,
        reference=with_lane(0.0),
    )


def dense(batch: Batch) -> Variant | None:
    """The same step through dense MLA, compared for the queries that select every causal page of their sequence."""
    causal = np.where(batch.real, batch.positions // batch.page_size + 1, 0)
    return _through("dense_mla", batch, (batch.topk_pages >= 0).sum(axis=1) == causal)


def qblock(batch: Batch) -> Variant | None:
    """The same step through the per-query sparse kernel."""
    return _through("sparse_mla_prefill", batch, batch.real)


def decode(batch: Batch) -> Variant | None:
    """The same decodes as one-token extends, compared where the page of the new token is selected."""
    if batch.mode != "decode":
        return None
    own = (batch.topk_pages == batch.positions[:, None] // batch.page_size).any(axis=1)
    return _through("sparse_mla_prefill", batch, own)


def _through(surface: str, batch: Batch, compared: np.ndarray) -> Variant | None:
    """The batch as it is, through another surface of the provider."""
    tokens = np.where(compared & batch.real, np.arange(batch.tokens), -1)
    if not (tokens >= 0).any():
        return None
    return Variant((VariantStep(batch, tokens),), _same_slots(batch), surface=surface)


def _requests(batch: Batch) -> np.ndarray:
    """The sequence slots that are not padding."""
    return np.flatnonzero(batch.kv_lens > 0)


def _whole(batch: Batch, seq: int) -> SequencePart:
    return SequencePart(int(seq), 0, int(batch.q_lens[seq]))


def _pieces(batch: Batch, seq: int) -> list[SequencePart]:
    """A chunk cut in up to three: off a page boundary as near to its middle as can be, and on its first one."""
    n, history = int(batch.q_lens[seq]), int(batch.kv_lens[seq] - batch.q_lens[seq])
    inside = sorted(range(1, n), key=lambda cut: abs(2 * cut - n))
    on = [cut for cut in range(1, n) if (history + cut) % batch.page_size == 0][:1]
    off = [cut for cut in inside if (history + cut) % batch.page_size][:1]
    edges = [0, *sorted(on + off), n]
    return [SequencePart(seq, first, last) for first, last in pairwise(edges)]


def _same_tokens(batch: Batch) -> np.ndarray:
    return np.where(batch.real, np.arange(batch.tokens), -1)


def _same_slots(batch: Batch) -> np.ndarray:
    return np.where(batch.owned, np.arange(batch.owned.size), -1)


def _slots_of_pages(batch: Batch, source: np.ndarray, owned: np.ndarray) -> np.ndarray:
    """Slots whose pages hold what the pages `source` of the base hold."""
    slots = source[:, None] * batch.page_size + np.arange(batch.page_size)
    return np.where(owned, slots.reshape(-1), -1)
