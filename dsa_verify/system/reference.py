"""The reference: a float64 NumPy decoder of one sequence without caches, told by which mode each token was computed.

What a token may look at depends on the mode of the step that computed it: a decode keeps a page budget, or the pages
of its best tokens, and its own page; in extend and mixed steps a token keeps its best pages, or everything. So does
everything behind it, through its cached rows. Nothing else may matter: not company, chunks, pages or prefix hits.
MLPs are dense here; mixtures of experts are compared with transformers instead.

Source of the architecture: DeepSeek-V3.2-Exp inference/model.py; transformers, models/glm_moe_dsa and deepseek_v32. No
code is shared with `dsa_verify.model`'s decoder or backend; keys and values are unfolded, not absorbed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.model.model_config import LATENT_NORM_EPS, ModelConfig


@dataclass(frozen=True)
class Known:
    """logits: f64[tokens, vocab_size]. margin: f64[tokens], by how much the closest choice in a token's history was
    made, of the largest score of its row; below rounding, another implementation may choose the other way.
    """

    logits: np.ndarray
    margin: np.ndarray


@dataclass(frozen=True)
class Reference:
    """A checkpoint (Hugging Face names) under a configuration of the backend."""

    config: ModelConfig
    weights: Mapping[str, np.ndarray]
    backend: BackendConfig
    page_size: int

    def read(self, tokens: np.ndarray, decoded: np.ndarray) -> Known:
        """All of a sequence, i32[tokens]; `decoded` bool[tokens] names those that decode steps computed."""
        config = self.config
        hidden = self._weight("embed_tokens")[tokens]
        angle = np.exp(1j * np.arange(len(tokens))[:, None, None] * np.array(config.rotary))
        allowed, margin = np.zeros((0, 0), bool), np.full(len(tokens), np.inf)
        for layer, kind in enumerate(config.indexer_types):
            at = f"layers.{layer}."
            x = _rms(hidden, self._weight(at + "input_layernorm"), config.rms_norm_eps)
            q_lora = _rms(
                x @ self._weight(at + "self_attn.q_a_proj").T,
                self._weight(at + "self_attn.q_a_layernorm"),
                LATENT_NORM_EPS,
            )
            if kind == "full":
                allowed, close = self._choose(self._scores(at + "self_attn.indexer.", x, q_lora, angle), decoded)
                margin = np.minimum(margin, close)
            hidden = hidden + self._attention(at + "self_attn.", x, q_lora, angle, allowed)
            x = _rms(hidden, self._weight(at + "post_attention_layernorm"), config.rms_norm_eps)
            gate, up, down = (self._weight(f"{at}mlp.{name}_proj") for name in ("gate", "up", "down"))
            gated = x @ gate.T
            hidden = hidden + (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T
        rows = _rms(hidden, self._weight("norm"), config.rms_norm_eps)
        return Known(rows @ np.asarray(self.weights["lm_head.weight"], float).T, np.minimum.accumulate(margin))

    def _weight(self, name: str) -> np.ndarray:
        return np.asarray(self.weights[f"model.{name}.weight"], float)

    def _scores(self, at: str, x: np.ndarray, q_lora: np.ndarray, angle: np.ndarray) -> np.ndarray:
        """f64[tokens, tokens], -inf where not causal."""
        config, interleaved = self.config, self.config.indexer.rope == "interleaved"
        heads, dim, rope = config.index_n_heads, config.index_head_dim, config.qk_rope_head_dim
        query = (q_lora @ self._weight(at + "wq_b").T).reshape(len(x), heads, dim)
        key = x @ self._weight(at + "wk").T
        key = (key - key.mean(1, keepdims=True)) / np.sqrt(key.var(1, keepdims=True) + config.indexer.norm_eps)
        key = key * self._weight(at + "k_norm") + self.weights[f"model.{at}k_norm.bias"]
        query[..., :rope] = _turn(query[..., :rope], angle, interleaved)
        key[:, :rope] = _turn(key[:, None, :rope], angle, interleaved)[:, 0]
        share = x @ self._weight(at + "weights_proj").T * (heads * dim) ** -0.5
        scores = np.einsum("qhk,qh->qk", np.maximum(np.einsum("qhd,kd->qhk", query, key), 0.0), share)
        return np.where(np.tri(len(x), dtype=bool), scores, -np.inf)

    def _choose(self, scores: np.ndarray, decoded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """bool[tokens, tokens], what each token attends, and f64[tokens], how close the choice was."""
        tokens, size, backend = len(scores), self.page_size, self.backend
        causal = np.tri(tokens, dtype=bool)
        exact, close = _best(scores, self.config.index_topk)
        if backend.granularity == "token":
            return exact, close
        page = np.arange(tokens) // size
        by_page = np.full((tokens, page[-1] + 1), -np.inf)
        for number in range(by_page.shape[1]):
            by_page[:, number] = scores[:, page == number].max(axis=1)
        extended, margin = np.ones_like(by_page, bool), np.full(tokens, np.inf)
        if backend.prefill_sparse:
            extended, margin = _best(by_page, -(-self.config.index_topk // size))
        if backend.page_topk:
            own, close = _best(by_page, backend.page_topk)
        else:
            own = np.stack([exact[:, page == number].any(axis=1) for number in range(by_page.shape[1])], axis=1)
        own[np.arange(tokens), page] = True
        kept = np.where(decoded[:, None], own, extended)
        return kept[:, page] & causal, np.where(decoded, close, margin)

    def _attention(self, at: str, x: np.ndarray, q_lora: np.ndarray, angle: np.ndarray, allowed: np.ndarray):
        config, heads, rank = self.config, self.config.num_attention_heads, self.config.kv_lora_rank
        nope = config.qk_nope_head_dim
        query = (q_lora @ self._weight(at + "q_b_proj").T).reshape(len(x), heads, -1)
        query = np.concatenate([query[..., :nope], _turn(query[..., nope:], angle, True)], axis=2)
        latent = x @ self._weight(at + "kv_a_proj_with_mqa").T
        c_kv = _rms(latent[:, :rank], self._weight(at + "kv_a_layernorm"), LATENT_NORM_EPS)
        unfolded = (c_kv @ self._weight(at + "kv_b_proj").T).reshape(len(x), heads, -1)
        k_pe = np.broadcast_to(_turn(latent[:, None, rank:], angle, True), (len(x), heads, config.qk_rope_head_dim))
        key, value = np.concatenate([unfolded[..., :nope], k_pe], axis=2), unfolded[..., nope:]
        logits = np.einsum("qhd,khd->hqk", query, key) * config.sm_scale
        logits = np.where(allowed, logits, -np.inf)
        weight = np.exp(logits - logits.max(axis=2, keepdims=True))
        out = np.einsum("hqk,khd->qhd", weight / weight.sum(axis=2, keepdims=True), value)
        return out.reshape(len(x), -1) @ self._weight(at + "o_proj").T


def _rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def _turn(x: np.ndarray, angle: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [tokens, heads, dim] with its pairs turned; c[tokens, 1, pairs]."""
    half = x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    turned = (x[..., first] + 1j * x[..., second]) * angle
    out = np.empty_like(x)
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def _best(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """bool: the k best of each row, lowest first among equals, none at -inf; and the gap to the next, of the largest.

    Two scores of exactly 0 are no close call: no head likes either key, whatever the rounding.
    """
    kept = np.zeros(scores.shape, bool)
    order = np.argsort(-scores, axis=1, kind="stable")
    np.put_along_axis(kept, order[:, :k], True, axis=1)
    kept &= scores > -np.inf
    if k >= scores.shape[1]:
        return kept, np.full(len(scores), np.inf)
    last, following = (np.take_along_axis(scores, order[:, at : at + 1], axis=1)[:, 0] for at in (k - 1, k))
    largest = np.abs(np.where(scores > -np.inf, scores, 0)).max(axis=1)
    forced = (following == -np.inf) | ((last == 0) & (following == 0))
    gap = np.where(forced, np.inf, last - np.where(forced, 0, following))
    return kept, gap / np.where(largest > 0, largest, 1)
