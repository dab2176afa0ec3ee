"""The decoder: one ragged step through all layers, over the paged pools that each of them has.

MLA is absorbed: the query's nope part goes through W_UK into the latent space, attention runs there through the
backend, and W_UV brings what was attended back. So keys and values are never unfolded; a cached row is a latent.

Source of the architecture: DeepSeek-V3.2-Exp inference/model.py; transformers, models/glm_moe_dsa and deepseek_v32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dsa_verify.kernels.jnp.projections import linear, project, rotate, turns
from dsa_verify.model.backend import (
    Caches,
    Inputs,
    Layer,
    LayerPath,
    Metadata,
    Mode,
    Selection,
    attend,
    paths_of,
)
from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.model.model_config import LATENT_NORM_EPS, ModelConfig
from dsa_verify.shapes import LANES, IndexerConvention, align

Params = Mapping[str, jax.Array]


@dataclass(frozen=True)
class Static:
    """What is fixed when a step is compiled."""

    config: ModelConfig
    backend: BackendConfig
    mode: Mode

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """What is static of each layer."""
        config = self.config
        return tuple(Layer(kind, config.index_topk, config.sm_scale) for kind in config.indexer_types)  # pyright: ignore[reportArgumentType]

    @cached_property
    def paths(self) -> tuple[LayerPath, ...]:
        """What each layer runs: `forward` carries it out, a runner reports it."""
        return paths_of(self.layers, self.mode, self.backend)


class ModelStep(NamedTuple):
    """The tokens of a step and where they stand; `last` i32[seqs] is the row of each sequence's last new token."""

    tokens: jax.Array
    metadata: Metadata
    last: jax.Array


class StepOutput(NamedTuple):
    """Logits f32[seqs, vocab_size] after each sequence's last token, the pools, and what each full layer chose."""

    logits: jax.Array
    pools: tuple[Caches, ...]
    selections: tuple[Selection | None, ...]


def load_params(config: ModelConfig, weights: Mapping[str, np.ndarray], dtype: DTypeLike) -> dict[str, jax.Array]:
    """Weights as the decoder takes them: kv_b_proj split by head into W_UK and W_UV, experts stacked.

    The router, its bias and norm weights stay float32.
    """
    params = {}
    for name, value in weights.items():
        exact = "norm" in name or ".mlp.gate." in name
        params[name.removeprefix("model.")] = jnp.asarray(value, jnp.float32 if exact else dtype)
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}."
        per_head = params.pop(at + "self_attn.kv_b_proj.weight").reshape(
            config.num_attention_heads, -1, config.kv_lora_rank
        )
        params[at + "self_attn.w_uk"] = per_head[:, : config.qk_nope_head_dim]
        params[at + "self_attn.w_uv"] = per_head[:, config.qk_nope_head_dim :]
        if config.mlp_layer_types[layer] == "sparse":
            for part in ("gate", "up", "down"):
                names = [f"{at}mlp.experts.{e}.{part}_proj.weight" for e in range(config.n_routed_experts)]
                params[f"{at}mlp.experts.{part}"] = jnp.stack([params.pop(name) for name in names])
    return params


def new_pools(config: ModelConfig, pages: int, page_size: int, dtype: DTypeLike) -> tuple[Caches, ...]:
    """Empty pools, one pair a layer; shared layers have no index keys."""
    width = align(config.kv_lora_rank, LANES) + align(config.qk_rope_head_dim, LANES)
    latent, keys = (pages, page_size, width), (pages, page_size, config.index_head_dim)
    return tuple(
        Caches(jnp.zeros(latent, dtype), jnp.zeros(keys, dtype) if kind == "full" else None)
        for kind in config.indexer_types
    )


def forward(static: Static, params: Params, step: ModelStep, pools: tuple[Caches, ...]) -> StepOutput:
    """One step through the decoder; jit-able with the first argument static."""
    config, positions = static.config, step.metadata.positions
    hidden = params["embed_tokens.weight"][step.tokens]
    turn = turns(positions, config.rotary)
    selection, selections, written = None, [], []
    for number, (layer, path) in enumerate(zip(static.layers, static.paths, strict=True)):
        w = LayerWeights(params, f"layers.{number}.")
        x = rms_norm(hidden, w("input_layernorm.weight"), config.rms_norm_eps)
        inputs = project_layer(config, w, x, turn, positions, layer.kind == "full")
        output = attend(layer, path, static.backend, inputs, pools[number], step.metadata, selection)
        selection = output.selection
        selections.append(selection if layer.kind == "full" else None)
        written.append(output.caches)
        hidden = residual_of_attention(w, hidden, output.out)
        hidden = residual_of_mlp(config, w, hidden, config.mlp_layer_types[number] == "sparse")
    rows = rms_norm(hidden[step.last], params["norm.weight"], config.rms_norm_eps)
    return StepOutput(linear(rows, params["lm_head.weight"]), tuple(written), tuple(selections))


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x [..., n] over its root mean square, times weight [n]; in float32, returned in x's dtype."""
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (scaled * weight).astype(x.dtype)


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer by their names within it."""

    params: Params
    prefix: str

    def __call__(self, name: str) -> jax.Array:
        return self.params[self.prefix + name]

    def names(self) -> dict[str, jax.Array]:
        """The layer's weights alone, by their names within it."""
        cut = len(self.prefix)
        return {name[cut:]: value for name, value in self.params.items() if name.startswith(self.prefix)}


def project_layer(
    config: ModelConfig, w: LayerWeights, x: jax.Array, turn: jax.Array, positions: jax.Array, indexer: bool
) -> Inputs:
    """Everything that attention and the indexer take of x [tokens, hidden_size]."""
    dtype, rank = x.dtype, config.kv_lora_rank
    q_lora = linear(x, w("self_attn.q_a_proj.weight")).astype(dtype)
    q_lora = rms_norm(q_lora, w("self_attn.q_a_layernorm.weight"), LATENT_NORM_EPS)
    query = linear(q_lora, w("self_attn.q_b_proj.weight")).reshape(len(x), config.num_attention_heads, -1)
    nope, pe = query[..., : config.qk_nope_head_dim].astype(dtype), query[..., config.qk_nope_head_dim :]
    latent = linear(x, w("self_attn.kv_a_proj_with_mqa.weight"))
    c_kv = rms_norm(latent[:, :rank].astype(dtype), w("self_attn.kv_a_layernorm.weight"), LATENT_NORM_EPS)
    heads = IndexerConvention("interleaved", config.qk_rope_head_dim)
    q_pe, k_pe = (rotate(part, turn, heads).astype(dtype) for part in (pe, latent[:, None, rank:]))
    absorbed = jnp.einsum("thn,hnr->thr", nope, w("self_attn.w_uk"), precision="highest")
    index = ()
    if indexer:
        names = ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
        wq_b, wk, norm, bias, weights_proj = (w("self_attn.indexer." + name) for name in names)
        index = project(x, q_lora, wq_b, wk, norm, bias, weights_proj, positions, config.indexer)
    return Inputs(absorbed.astype(dtype), q_pe, c_kv, k_pe[:, 0], *index)


def residual_of_attention(w: LayerWeights, hidden: jax.Array, attended: jax.Array) -> jax.Array:
    """The residual stream after attention; `attended` is in latent space, [tokens, heads, kv_lora_rank]."""
    values = jnp.einsum("thr,hvr->thv", attended, w("self_attn.w_uv"), precision="highest").astype(hidden.dtype)
    return hidden + linear(values.reshape(len(values), -1), w("self_attn.o_proj.weight")).astype(hidden.dtype)


def residual_of_mlp(config: ModelConfig, w: LayerWeights, hidden: jax.Array, sparse: bool) -> jax.Array:
    """The residual stream after the layer's MLP, dense or a mixture of experts."""
    x = rms_norm(hidden, w("post_attention_layernorm.weight"), config.rms_norm_eps)
    return hidden + (_experts(config, w, x) if sparse else _gated(w, "mlp.", x)).astype(hidden.dtype)


def _gated(w: LayerWeights, prefix: str, x: jax.Array) -> jax.Array:
    gate, up = (linear(x, w(f"{prefix}{name}_proj.weight")) for name in ("gate", "up"))
    return linear((jax.nn.silu(gate) * up).astype(x.dtype), w(f"{prefix}down_proj.weight"))


def _experts(config: ModelConfig, w: LayerWeights, x: jax.Array) -> jax.Array:
    """Shared experts, and the best routed ones of each token.

    Every expert sees every token and all but the chosen are multiplied by zero: plain, and dear with many experts. This
    decoder is there to be right.
    """
    share = _route(config, linear(x.astype(jnp.float32), w("mlp.gate.weight")), w("mlp.gate.e_score_correction_bias"))
    product = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    gate, up = (product("th,eih->tei", x, w(f"mlp.experts.{name}")) for name in ("gate", "up"))
    inner = (jax.nn.silu(gate) * up).astype(x.dtype)
    routed = product("tei,ehi,te->th", inner, w("mlp.experts.down"), share)
    return routed + _gated(w, "mlp.shared_experts.", x)


def _route(config: ModelConfig, logits: jax.Array, bias: jax.Array) -> jax.Array:
    """f32[tokens, experts]: the share of each expert; zero for those a token does not go to."""
    scores, tokens = jax.nn.sigmoid(logits), logits.shape[0]
    choice = scores + bias
    groups = choice.reshape(tokens, config.n_group, -1)
    best_two = jax.lax.top_k(groups, min(2, groups.shape[2]))[0].sum(axis=-1)
    _, kept = jax.lax.top_k(best_two, config.topk_group)
    open_group = jnp.zeros((tokens, config.n_group), bool).at[jnp.arange(tokens)[:, None], kept].set(True)
    choice = jnp.where(jnp.repeat(open_group, groups.shape[2], axis=1), choice, -jnp.inf)
    _, chosen = jax.lax.top_k(choice, config.num_experts_per_tok)
    picked = jnp.take_along_axis(scores, chosen, axis=1)
    if config.norm_topk_prob:
        picked = picked / (picked.sum(axis=1, keepdims=True) + 1e-20)
    share = jnp.zeros_like(scores).at[jnp.arange(tokens)[:, None], chosen].set(picked)
    return share * config.routed_scaling_factor
