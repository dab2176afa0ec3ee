"""Traffic: a kernel copies no page of the pool more often than it promises, and no page that nobody needs."""

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.evidence import Evidence, Verdict

TILE = 16
"""Rows of the smallest piece of a pool that a DMA can move, whatever the dtype."""


def judge(evidence: Evidence) -> Verdict:
    """Count the bytes that explicit copies bring in from HBM.

    What it demands: at most one fetch of each page that a block of `Promise.query_block` tokens needs of a sequence;
    for each tile that gets new rows, at most three reads of a tile's size (the tile, and an unaligned window of rows).
    Why it matters: a lost reuse, or pages fetched to be masked, change no result; they only cost what sparse attention
    is there to save.
    How it could be fooled: by blocks that Pallas brings in itself, which are not counted; no built-in kernel reads the
    pool that way. A device counts nothing.
    """
    run, batch = evidence.base, evidence.batch
    if run.outputs is None:
        return Verdict.rejected("the kernel failed and returned nothing; see the races check for its message")
    if run.traffic is None:
        return Verdict.not_verified("a device counts no copies; interpret mode does")
    moved = sum(route.bytes for route in run.traffic if (route.source, route.destination) == ("hbm", "vmem"))
    pool = batch.index_cache if evidence.expected.selection is not None else batch.cache_kv
    row = pool.shape[-1] * pool.dtype.itemsize
    pages = int(needed_pages(evidence, evidence.promise.query_block).sum())
    writes = evidence.expected.cache_kv is not None or evidence.expected.keys is not None
    tiles = written_tiles(batch) if writes else 0
    due = row * (pages * batch.page_size + 3 * tiles * TILE)
    share = moved / due if due else float(moved > 0) * float("inf")
    if moved <= due:
        return Verdict.accepted(share)
    return Verdict.rejected(
        f"the kernel fetched {moved} bytes, {share:.3g} times the {due} that are needed for blocks of "
        f"{evidence.promise.query_block} tokens: {pages} pages of {batch.page_size} rows, {tiles} tiles with new rows",
        share,
    )


def needed_pages(evidence: Evidence, query_block: int) -> np.ndarray:
    """i[blocks, seqs]: distinct pages of each sequence that the tokens of each block need."""
    batch = evidence.batch
    needs = _needs(evidence)
    blocks = -(-batch.tokens // query_block)
    found = np.zeros((blocks, batch.seqs), int)
    for block in range(blocks):
        here = np.arange(batch.tokens) // query_block == block
        for seq in range(batch.seqs):
            found[block, seq] = needs[here & (batch.seq_of_token == seq)].any(axis=0).sum()
    return found


def written_tiles(batch: Batch) -> int:
    """Tiles of a pool that get new rows."""
    return len(np.unique(batch.out_cache_loc[batch.real] // TILE))


def _needs(evidence: Evidence) -> np.ndarray:
    """bool[tokens, pages_per_seq]: the pages that each token reads: what it selected, or all that are causal."""
    batch, needs = evidence.batch, np.zeros((evidence.batch.tokens, evidence.batch.page_table.shape[1]), bool)
    last = np.where(batch.real, batch.positions // batch.page_size, -1)
    causal = np.arange(needs.shape[1]) <= last[:, None]
    if evidence.reads == "causal":
        return causal
    if evidence.reads == "nothing":
        return needs
    rows, columns = np.nonzero(batch.topk_pages >= 0)
    needs[rows, batch.topk_pages[rows, columns]] = True
    if evidence.reads == "selected and own":
        needs |= np.arange(needs.shape[1]) == last[:, None]
    return needs & causal
