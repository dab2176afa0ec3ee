"""Describes a place in a batch in words, for messages: request, position, page."""

import numpy as np

from dsa_verify.batch.batch import Batch


def token(batch: Batch, index: int) -> str:
    """A query token in the domain's coordinates."""
    seq = int(batch.seq_of_token[index])
    if seq < 0:
        return f"padding token {index}"
    position = int(batch.positions[index])
    return f"token {index} (request {seq}, position {position})"


def slot(batch: Batch, index: int) -> str:
    """A slot of the page pool, and who owns it."""
    page, offset = divmod(int(index), batch.page_size)
    place = f"pool page {page}, offset {offset}"
    for seq in range(batch.seqs):
        at = np.flatnonzero(batch.slots(seq) == index)
        if len(at):
            return f"{place} (request {seq}, position {int(at[0])})"
    return f"{place} (owned by nobody)"


def spread(batch: Batch, tokens: np.ndarray) -> str:
    """Where a set of faulty tokens lies: how many, in which requests."""
    seqs = sorted(set(batch.seq_of_token[tokens].tolist()) - {-1})
    where = f" in request{'s' if len(seqs) > 1 else ''} {', '.join(map(str, seqs))}" if seqs else ""
    return f"{len(tokens)} of {int(batch.real.sum())} query tokens affected{where}"


def pages_attended(batch: Batch, index: int) -> str:
    chosen = batch.topk_pages[index]
    return f"selected pages {chosen[chosen >= 0].tolist()}"
