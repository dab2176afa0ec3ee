"""Absorbed MLA of one sequence in float64, dense or over a selection, with what its rounding depends on."""

import numpy as np

from dsa_verify.evidence import Attention


def attend(
    ql_nope: np.ndarray,
    q_pe: np.ndarray,
    c_kv: np.ndarray,
    k_pe: np.ndarray,
    allowed: np.ndarray,
    sm_scale: float,
) -> Attention:
    """Attend the allowed tokens of one sequence.

        out[q, h] = sum_j softmax_j(sm_scale * (ql_nope[q, h] . c_kv[j] + q_pe[q, h] . k_pe[j])) * c_kv[j]

    Args:
      ql_nope: [queries, heads, kv_lora_rank], absorbed latent queries.
      q_pe: [queries, heads, qk_rope_head_dim], rotated.
      c_kv, k_pe: [kv, ...], cached latents and rotated keys in order of position; the latent is the value.
      allowed: bool[queries, kv], which tokens each query attends: causal, and selected.
      sm_scale: (qk_nope_head_dim + qk_rope_head_dim) ** -0.5, times the squared YaRN factor where there is one.

    Source: DeepSeek-V3.2-Exp inference/model.py, MLA.forward, the absorbed (decode) branch.
    """
    q = np.concatenate([ql_nope, q_pe], axis=-1).astype(np.float64)
    k = np.concatenate([c_kv, k_pe], axis=-1).astype(np.float64)
    v = np.asarray(c_kv, np.float64)
    seen = allowed[:, None, :]
    logits = np.where(seen, sm_scale * (q @ k.T), -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    p = weights / np.where(total > 0, total, 1.0)
    out = p @ v
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isfinite(top), top, 0.0))[..., 0]
    finite = np.where(seen, logits, 0.0)
    magnitude = np.where(seen, sm_scale * np.sqrt(q**2 @ (k**2).T), 0.0) + np.abs(finite)
    norm = np.sum(out**2, axis=-1)
    gain = np.sqrt(np.sum((p * (out @ v.T)) ** 2, axis=-1)) / np.where(norm > 0, norm, 1.0)
    return Attention(
        out=out,
        lse=lse,
        spread=np.sqrt(p**2 @ v**2),
        weight=p @ np.abs(v),
        logit=magnitude.max(axis=-1, initial=0.0),
        gain=gain,
        terms=allowed.sum(axis=-1),
    )


def token_mask(topk_indices: np.ndarray, kv_len: int) -> np.ndarray:
    """bool[queries, kv_len]: which positions a token selection names; -1 names none."""
    mask = np.zeros((len(topk_indices), kv_len + 1), bool)
    np.put_along_axis(mask, np.where(topk_indices < 0, kv_len, topk_indices), True, axis=1)
    return mask[:, :kv_len]


def page_mask(topk_pages: np.ndarray, kv_len: int, page_size: int) -> np.ndarray:
    """bool[queries, kv_len]: the positions of selected sequence-local pages; -1 selects none."""
    pages = token_mask(topk_pages, -(-kv_len // page_size))
    return np.repeat(pages, page_size, axis=1)[:, :kv_len]
