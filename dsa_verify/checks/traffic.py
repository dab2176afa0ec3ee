"""Traffic: a kernel copies no page of the pool more often than it promises, and no page that nobody needs."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.evidence import Evidence, Verdict

_POOLS = ("cache_kv", "index_cache")
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
    row, writes = _row(evidence)
    pages = int(needed_pages(evidence, evidence.promise.query_block).sum())
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


@dataclass(frozen=True)
class Moved:
    """Bytes between HBM and a core in one call, both ways, and what they are held against.

    least: the step's own operands and results once, each page that a block of queries needs once, and the new rows.
    dense: the same with every causal page.
    """

    bytes: int
    least: int
    dense: int


def moved(evidence: Evidence, operands: Iterable[str]) -> Moved | None:
    """What a kernel's copies moved; None on a device, which counts none, and without a result.

    operands: names of the arrays that the surface takes. A block is that of `Promise.query_block`, one query where
    nothing is promised.
    """
    run, batch = evidence.base, evidence.batch
    if run.outputs is None or run.traffic is None:
        return None
    block = evidence.promise.query_block or 1
    row, writes = _row(evidence)
    arrays = [batch.operand(name) for name in operands if name not in _POOLS]
    arrays += [output for name, output in run.outputs.items() if name not in _POOLS]
    # Integers are tables, which scalar memory takes, and choices, which kernels may leave to XLA: not counted.
    once = sum(x.nbytes for x in arrays if not np.issubdtype(x.dtype, np.integer)) + (
        row * int(batch.real.sum()) if writes else 0
    )
    least, dense = (
        once + row * batch.page_size * int(needed_pages(evidence, block, dense=which).sum()) for which in (False, True)
    )
    return Moved(sum(one.bytes for one in run.traffic if "hbm" in (one.source, one.destination)), least, dense)


def _row(evidence: Evidence) -> tuple[int, bool]:
    """Bytes of a row of the pool that the surface reads, and whether the step writes rows."""
    batch, expected = evidence.batch, evidence.expected
    pool = batch.index_cache if expected.selection is not None else batch.cache_kv
    return pool.shape[-1] * pool.dtype.itemsize, expected.cache_kv is not None or expected.keys is not None


def needed_pages(evidence: Evidence, query_block: int, dense: bool = False) -> np.ndarray:
    """i[blocks, seqs]: distinct pages of each sequence that the tokens of each block need, or, dense, could need."""
    batch = evidence.batch
    needs = _causal(batch) if dense and evidence.reads != "nothing" else _needs(evidence)
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
    batch, causal = evidence.batch, _causal(evidence.batch)
    needs = np.zeros_like(causal)
    if evidence.reads == "causal":
        return causal
    if evidence.reads == "nothing":
        return needs
    rows, columns = np.nonzero(batch.topk_pages >= 0)
    needs[rows, batch.topk_pages[rows, columns]] = True
    if evidence.reads == "selected and own":
        needs |= causal & ~np.pad(causal[:, 1:], ((0, 0), (0, 1)))
    return needs & causal


def _causal(batch: Batch) -> np.ndarray:
    """bool[tokens, pages_per_seq]: the pages up to that of the token itself; none for padding."""
    last = np.where(batch.real, batch.positions // batch.page_size, -1)
    return np.arange(int(batch.page_table.shape[1])) <= last[:, None]
