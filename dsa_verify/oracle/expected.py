"""What a surface must answer to a batch: the sequences of the batch put through the float64 oracle."""

from dataclasses import fields

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.errors import unknown_name
from dsa_verify.evidence import Attention, Expected, ScoredCandidates
from dsa_verify.oracle import indexer
from dsa_verify.oracle.attention import attend, page_mask
from dsa_verify.oracle.scores import Scores, best, index_scores, page_scores
from dsa_verify.shapes import LANES, align


def expected(surface: str, batch: Batch) -> Expected:
    """The answer of the named surface to a batch."""
    if surface == "index_topk":
        return Expected(selection=selection(batch))
    if surface == "index_page_topk":
        return Expected(selection=selection(batch, pages=True))
    if surface == "indexer":
        return indexed(batch)
    written = write_cache(batch)
    if surface == "cache_write":
        return Expected(cache_kv=written)
    if surface in ("dense_mla", "sparse_mla_decode", "sparse_mla_prefill", "sparse_mla_prefill_qblock"):
        return Expected(attention=attention(surface, batch, written), cache_kv=written)
    raise unknown_name("surface", surface, ())


def selection(batch: Batch, *, pages: bool = False) -> ScoredCandidates:
    """Scores of all positions, or of all sequence-local pages, of every token's own sequence."""
    columns = batch.page_table.shape[1] * (1 if pages else batch.page_size)
    value = np.full((batch.tokens, columns), -np.inf)
    magnitude = np.zeros((batch.tokens, columns))
    keys = batch.index_cache.reshape(-1, batch.index_cache.shape[-1])
    for seq in range(batch.seqs):
        rows = batch.rows(seq)
        if rows.start == rows.stop:
            continue
        scores: Scores = index_scores(
            batch.index_q[rows], batch.index_weights[rows], keys[batch.slots(seq)], batch.positions[rows]
        )
        if pages:
            scores = page_scores(scores, batch.page_size)
        value[rows, : scores.value.shape[1]] = scores.value
        magnitude[rows, : scores.value.shape[1]] = scores.magnitude
    terms = batch.index_q.shape[1] * batch.index_q.shape[2]
    budget = batch.k_pages if pages else batch.index_topk
    return ScoredCandidates(value, magnitude, best(value, budget), terms, batch.exact_scores)


def indexed(batch: Batch) -> Expected:
    """The answer of a whole indexer: the keys of the new tokens, and the positions chosen by the scores over them.

    Heads turn by `positions`; what is causal follows from the lengths, as in `index_topk`.
    """
    projected = indexer.project(batch)
    shape = (batch.tokens, batch.page_table.shape[1] * batch.page_size)
    value, magnitude, error = np.full(shape, -np.inf), np.zeros(shape), np.zeros(shape)
    pool = batch.index_cache.reshape(-1, batch.index_cache.shape[-1]).astype(np.float64)
    pool[batch.out_cache_loc[batch.real]] = projected.keys.value[batch.real]
    made_by = np.full(len(pool), -1)
    made_by[batch.out_cache_loc[batch.real]] = np.flatnonzero(batch.real)
    for seq in range(batch.seqs):
        rows, kv_len = batch.rows(seq), int(batch.kv_lens[seq])
        if rows.start == rows.stop:
            continue
        slots = batch.slots(seq)
        keys, last = pool[slots], kv_len - rows.stop + np.arange(rows.start, rows.stop)
        q, w = projected.queries.value[rows], projected.weights.value[rows]
        # Equal keys have equal scores, in whatever order a machine sums: each is scored once.
        unlike, of_key = np.unique(keys, axis=0, return_inverse=True)
        scores = index_scores(q, w, unlike, np.full(len(q), len(unlike)))
        causal = np.arange(kv_len) <= last[:, None]
        value[rows, :kv_len] = np.where(causal, scores.value[:, of_key], -np.inf)
        magnitude[rows, :kv_len] = scores.magnitude[:, of_key]
        error[rows, :kv_len] = indexer.score_error(projected, rows, keys, made_by[slots], batch.index_cache.dtype)
    terms = batch.index_q.shape[1] * batch.index_q.shape[2]
    chosen = ScoredCandidates(value, magnitude, best(value, batch.index_topk), terms, error=error)
    return Expected(selection=chosen, keys=indexer.keys(projected))


def write_cache(batch: Batch) -> np.ndarray:
    """The latent pool after the step: new rows at `out_cache_loc`, every other bit as it was."""
    cache = batch.cache_kv.copy()
    flat = cache.reshape(-1, cache.shape[-1])
    rank, rope = batch.new_c_kv.shape[1], batch.new_k_pe.shape[1]
    pe = align(rank, LANES)
    at = batch.out_cache_loc[batch.real]
    flat[at] = 0
    flat[at, :rank] = batch.new_c_kv[batch.real]
    flat[at, pe : pe + rope] = batch.new_k_pe[batch.real]
    return cache


def attention(surface: str, batch: Batch, cache_kv: np.ndarray) -> Attention:
    """The answer of an attention surface, over all tokens of the batch; padding rows are zeros."""
    tokens, heads, rank = batch.ql_nope.shape
    wide, narrow = (tokens, heads, rank), (tokens, heads)
    whole = Attention(
        out=np.zeros(wide),
        lse=np.full(narrow, -np.inf),
        spread=np.zeros(wide),
        weight=np.zeros(wide),
        logit=np.zeros(narrow),
        gain=np.zeros(narrow),
        terms=np.zeros(tokens, int),
    )
    latent = cache_kv.reshape(-1, cache_kv.shape[-1])
    pe, rope = align(rank, LANES), batch.q_pe.shape[-1]
    for seq in range(batch.seqs):
        rows = batch.rows(seq)
        if rows.start == rows.stop:
            continue
        cached = latent[batch.slots(seq)]
        part = attend(
            batch.ql_nope[rows],
            batch.q_pe[rows],
            cached[:, :rank],
            cached[:, pe : pe + rope],
            allowed(surface, batch, seq),
            batch.sm_scale,
        )
        for field in fields(Attention):
            getattr(whole, field.name)[rows] = getattr(part, field.name)
    return whole


def allowed(surface: str, batch: Batch, seq: int) -> np.ndarray:
    """bool[queries, kv_len]: what each query of a sequence attends on this surface."""
    rows, kv_len = batch.rows(seq), int(batch.kv_lens[seq])
    causal = np.arange(kv_len) <= batch.positions[rows][:, None]
    if surface == "dense_mla":
        return causal
    mask = page_mask(batch.topk_pages[rows], kv_len, batch.page_size)
    if surface == "sparse_mla_decode":
        mask |= np.arange(kv_len) // batch.page_size == (kv_len - 1) // batch.page_size
    return causal & mask
