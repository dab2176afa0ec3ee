"""The online softmax that every attention kernel of this folder runs, step by step of the keys."""

import jax
import jax.numpy as jnp
from jax import lax

Softmax = tuple[jax.Array, jax.Array]
"""Running maximum and running sum, both f32, with a length-1 axis where the keys are."""


def contract(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Matrix product over one axis of each operand, accumulated in float32.

    float32 operands ask for full precision: the MXU's default would round them to bfloat16.
    """
    return lax.dot_general(
        a,
        b,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def softmax_step(logits: jax.Array, state: Softmax, key_axis: int) -> tuple[jax.Array, jax.Array, Softmax]:
    """Take one tile of logits (f32, -inf where masked) into the running softmax.

    Returns the tile's unnormalised weights, the factor by which earlier sums shrink, and the new state. A
    query that has seen nothing yet keeps maximum -inf, and -inf - -inf never occurs.
    """
    maximum, total = state
    new = jnp.maximum(maximum, jnp.max(logits, axis=key_axis, keepdims=True))
    shift = jnp.where(new == -jnp.inf, 0.0, new)
    weights = jnp.exp(logits - shift)
    shrink = jnp.exp(maximum - shift)
    return weights, shrink, (new, total * shrink + jnp.sum(weights, axis=key_axis, keepdims=True))


def normalise(accumulated: jax.Array, total: jax.Array) -> jax.Array:
    """Divide by the softmax sum; a query that attended nothing gets zeros."""
    return accumulated / jnp.where(total == 0.0, 1.0, total)
