"""The random checkpoints of `dsa_verify.system`, and the tokens that they were pinned on."""

import numpy as np

from dsa_verify.system.random_model import DOCUMENTS, uniform, weights_of

__all__ = ["CHUNKS", "DOCUMENTS", "TOKENS", "tokens_of", "weights_of"]

TOKENS = 26
CHUNKS = {"single-shot": (26,), "chunked": (9, 1, 11, 5), "decode": (20, 1, 1, 1, 1, 1, 1)}


def tokens_of(kind: str) -> np.ndarray:
    """i32[TOKENS]."""
    return ((uniform(f"tokens of {kind}", TOKENS) + 1) / 2 * DOCUMENTS[kind]["vocab_size"]).astype(np.int32)
