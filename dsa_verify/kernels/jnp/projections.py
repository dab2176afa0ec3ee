"""The indexer's projections in plain jax.numpy: queries, normed and rotated keys, head weights."""

import jax
import jax.numpy as jnp

from dsa_verify.shapes import IndexerConvention


def project(
    hidden: jax.Array,
    q_lora: jax.Array,
    wq_b: jax.Array,
    wk: jax.Array,
    k_norm: jax.Array,
    k_norm_bias: jax.Array,
    weights_proj: jax.Array,
    positions: jax.Array,
    convention: IndexerConvention,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [tokens, index_n_heads, index_head_dim] and keys [tokens, index_head_dim] in the dtype of `hidden`, head
    weights f32[tokens, index_n_heads].

    Everything between the dtype's products and its results is float32; weights carry both scales, of heads and width.
    """
    heads, dim = weights_proj.shape[0], wk.shape[0]
    query = linear(q_lora, wq_b).reshape(-1, heads, dim)
    key = linear(hidden, wk)
    key = key - key.mean(axis=-1, keepdims=True)
    key = key * jax.lax.rsqrt((key * key).mean(axis=-1, keepdims=True) + convention.norm_eps)
    key = (key * k_norm + k_norm_bias)[:, None]
    weights = linear(hidden, weights_proj) * (heads * dim) ** -0.5
    turn = turns(positions, convention.rotary)
    query, key = (rotate(x, turn, convention).astype(hidden.dtype) for x in (query, key))
    return query, key[:, 0], weights


def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [n, in] times weight [out, in] transposed, f32[n, out]."""
    return jnp.einsum("ni,oi->no", x, weight, precision="highest", preferred_element_type=jnp.float32)


def turns(positions: jax.Array, frequencies: tuple[float, ...]) -> jax.Array:
    """c64[tokens, 1, pairs]: by how much each pair turns, as a complex number of size one."""
    angle = positions.astype(jnp.float32)[:, None, None] * jnp.asarray(frequencies, jnp.float32)
    return jnp.exp(1j * angle)


def rotate(x: jax.Array, turn: jax.Array, convention: IndexerConvention) -> jax.Array:
    """Turn the pairs of the first `rope_dim` lanes of f32[tokens, heads, dim]."""
    rope = x[..., : convention.rope_dim]
    pairs = rope.reshape(*x.shape[:-1], -1, 2)
    if convention.rope == "half_split":
        pairs = jnp.swapaxes(rope.reshape(*x.shape[:-1], 2, -1), -1, -2)
    turned = jax.lax.complex(pairs[..., 0], pairs[..., 1]) * turn
    pairs = jnp.stack([turned.real, turned.imag], axis=-1)
    if convention.rope == "half_split":
        pairs = jnp.swapaxes(pairs, -1, -2)
    return jnp.concatenate([pairs.reshape(rope.shape), x[..., convention.rope_dim :]], axis=-1)
