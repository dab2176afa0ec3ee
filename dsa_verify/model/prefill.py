"""One long prompt through the decoder in blocks of queries, and what each full layer's indexer chose of it.

The engine's steps gather a sequence's rows for every token, which is plain, and hopeless for tens of thousands of
them. Here the keys of the one sequence are shared: a block of queries is one matrix product with all of them. Choices
are exact and by token, as the published models make them; layers behind the last one asked for are not run.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count

import jax
import jax.numpy as jnp
import numpy as np

from dsa_verify.kernels.jnp.projections import turns
from dsa_verify.model.backend import Inputs
from dsa_verify.model.decoder import (
    LayerWeights,
    Params,
    project_layer,
    residual_of_attention,
    residual_of_mlp,
    rms_norm,
)
from dsa_verify.model.model_config import ModelConfig
from dsa_verify.shapes import align

BLOCK = 256
"""Queries of one matrix product."""
KEYS = 4096
"""Keys are cut off behind a block at a multiple of this, so that few shapes are compiled."""

Tell = Callable[[int, int], None]
"""Told how many blocks are done, of how many."""


def selections_of(
    config: ModelConfig,
    params: Params,
    tokens: np.ndarray,
    layers: tuple[int, ...],
    queries: int,
    tell: Tell = lambda done, total: None,
) -> Mapping[int, np.ndarray]:
    """Choices of the last `queries` tokens in each of `layers`, i32[queries, index_topk], ascending, -1 at the tail.

    Args:
      tokens: i32[tokens], the prompt. layers: full layers.
      tell: called whenever a block of one layer has chosen or attended.
    """
    padded = np.pad(tokens, (0, -len(tokens) % BLOCK), constant_values=1).astype(np.int32)
    positions = jnp.arange(len(padded), dtype=jnp.int32)
    turn = turns(positions, config.rotary)
    hidden, chosen, found = params["embed_tokens.weight"][padded], np.zeros((0, 0), np.int32), {}
    done = _counter(_block_count(config, len(padded), max(layers), len(tokens) - queries), tell)
    for number in range(max(layers) + 1):
        w = LayerWeights(params, f"layers.{number}.")
        full, last = config.indexer_types[number] == "full", number == max(layers)
        inputs = _inputs(config, w.names(), full, hidden, turn, positions)
        if full:
            begin = (len(tokens) - queries) // BLOCK * BLOCK if last else 0
            chosen = _choose(config, inputs, begin, done)
        if number in layers:
            found[number] = chosen[len(chosen) - (len(padded) - len(tokens)) - queries :][:queries]
        if last:
            break
        out = _attend_all(config, inputs, chosen, done)
        hidden = _rest(config, w.names(), config.mlp_layer_types[number] == "sparse", hidden, out)
    return found


def _block_count(config: ModelConfig, tokens: int, last: int, first_query: int) -> int:
    """Blocks that choose, in full layers, and blocks that attend, in all but the last one."""
    whole, end = tokens // BLOCK, tokens // BLOCK - first_query // BLOCK
    full = sum(kind == "full" for kind in config.indexer_types[:last])
    return whole * (full + last) + end


def _counter(total: int, tell: Tell) -> Callable[[], None]:
    """Tells one more at each call."""
    counted = count(1)
    return lambda: tell(next(counted), total)


@partial(jax.jit, static_argnums=(0, 2))
def _inputs(config: ModelConfig, weights: Params, full: bool, hidden, turn, positions) -> Inputs:
    w = LayerWeights(weights, "")
    x = rms_norm(hidden, w("input_layernorm.weight"), config.rms_norm_eps)
    return project_layer(config, w, x, turn, positions, full)


@partial(jax.jit, static_argnums=(0, 2))
def _rest(config: ModelConfig, weights: Params, sparse: bool, hidden, out):
    w = LayerWeights(weights, "")
    return residual_of_mlp(config, w, residual_of_attention(w, hidden, out), sparse)


def _blocks(begin: int, tokens: int) -> Iterator[tuple[int, int]]:
    """First query of each block from `begin` on, and how many keys it may look at."""
    for start in range(begin, tokens, BLOCK):
        yield start, min(align(start + BLOCK, KEYS), tokens)


def _choose(config: ModelConfig, inputs: Inputs, begin: int, done: Callable[[], None]) -> np.ndarray:
    """i32[tokens - begin, index_topk] for the tokens from `begin` on."""
    parts = []
    for start, keys in _blocks(begin, len(inputs.q_pe)):
        parts.append(_best(np.asarray(_scores(keys, inputs, start)), config.index_topk))
        done()
    return np.concatenate(parts)


@partial(jax.jit, static_argnums=0)
def _scores(keys: int, inputs: Inputs, start):
    """f32[BLOCK, keys], -inf where not causal."""
    assert inputs.index_q is not None and inputs.index_k is not None and inputs.index_weights is not None
    cut = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=BLOCK)
    query, weight = cut(inputs.index_q), cut(inputs.index_weights)
    dots = jnp.einsum("qhd,kd->hqk", query, inputs.index_k[:keys], preferred_element_type=jnp.float32)
    scores = jnp.einsum("hqk,qh->qk", jnp.maximum(dots, 0.0), weight)
    return jnp.where(jnp.arange(keys) <= start + jnp.arange(BLOCK)[:, None], scores, -jnp.inf)


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """The k best columns of each row in ascending order, lowest first among equals; -1 at the tail."""
    if scores.shape[1] > k:
        least = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]
        above, level = scores > least, scores == least
        room = k - above.sum(axis=1, keepdims=True)
        kept = (above | (level & (np.cumsum(level, axis=1) <= room))) & (scores > -np.inf)
    else:
        kept = scores > -np.inf
    chosen = np.full((len(scores), k), -1, np.int32)
    row, column = np.nonzero(kept)
    chosen[row, (np.cumsum(kept, axis=1) - 1)[row, column]] = column
    return chosen


def _attend_all(config: ModelConfig, inputs: Inputs, chosen: np.ndarray, done: Callable[[], None]) -> jax.Array:
    """Attention of every token over what it chose, [tokens, heads, kv_lora_rank]."""
    parts = []
    for at, keys in _blocks(0, len(chosen)):
        # Waited for: a dispatch that has only been queued is not done.
        parts.append(_attend(config.sm_scale, keys, inputs, at, chosen[at : at + BLOCK]).block_until_ready())
        done()
    return jnp.concatenate(parts)


@partial(jax.jit, static_argnums=(0, 1))
def _attend(sm_scale: float, keys: int, inputs: Inputs, start, chosen):
    cut = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=BLOCK)
    latent = inputs.new_c_kv[:keys]
    logits = jnp.einsum("qhr,kr->hqk", cut(inputs.ql_nope), latent)
    logits += jnp.einsum("qhr,kr->hqk", cut(inputs.q_pe), inputs.new_k_pe[:keys])
    row = jnp.arange(BLOCK)[:, None]
    kept = jnp.zeros((BLOCK, keys), bool).at[row, chosen].set(True, mode="drop", wrap_negative_indices=False)
    weights = jax.nn.softmax(jnp.where(kept, logits * sm_scale, -jnp.inf), axis=-1)
    return jnp.einsum("hqk,kr->qhr", weights, latent)
