"""A block of queries over shared pages: the flash step of dense MLA and of query-block sparse prefill.

Why the layout: a block holds query_block * heads independent rows of the softmax, enough to fill the 128
lanes, so here queries take the lanes and keys the sublanes: logits are [keys, lanes]. That makes everything
that belongs to one query a row over the lanes (its position, its running maximum and sum, whether it may
see a page), and everything that belongs to one page a range of sublanes. The accumulator is kept
transposed, [kv_lora_rank, lanes], and turned once at the end.

The two kernels differ in which pages a block walks and who may see them, never in the mathematics.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.kernels.pallas.flash import contract, normalise, softmax_step
from dsa_verify.kernels.pallas.layout import Ref, latent_rows, pad_to

KEYS_PER_STEP = 512
"""Keys of one step: 655 KB of latent in bfloat16, and [512, lanes] float32 logits in VMEM."""


class Accumulator(NamedTuple):
    """VMEM references that live through one block: the softmax of every lane and its weighted sum."""

    maximum: Ref  # f32[1, lanes]
    total: Ref  # f32[1, lanes]
    weighted: Ref  # f32[rank, lanes]

    @staticmethod
    def scratch(rank: int, lanes: int) -> list[pl.MemoryRef]:
        """What a kernel must reserve for the three."""
        return [pltpu.VMEM(shape, jnp.float32) for shape in ((1, lanes), (1, lanes), (rank, lanes))]

    def clear(self) -> None:
        """Begin a block: scratch memory outlives the program that wrote it, and holds anything before the first."""
        self.maximum[...] = jnp.full(self.maximum.shape, -jnp.inf)
        self.total[...] = jnp.zeros(self.total.shape)
        self.weighted[...] = jnp.zeros(self.weighted.shape)

    def add(self, q: jax.Array, keys: jax.Array, last_seen: list[jax.Array], sm_scale: float) -> None:
        """Take one step of keys into the softmax.

        Args:
          q: [lanes, latent_width].
          keys: [keys, latent_width]; rows that nobody sees may hold anything, NaN too.
          last_seen: for each of as many equal stretches of keys i32[1, lanes], the last row that each lane sees; -1
            for none.
        """
        rank, stretch = self.weighted.shape[0], keys.shape[0] // len(last_seen)
        lanes = q.shape[0]
        row = lax.broadcasted_iota(jnp.int32, (stretch, lanes), 0)
        # As int32, and a mask again where it is used: of vectors of bits Mosaic supports a part only, and words always.
        visible = jnp.concatenate([(row <= last).astype(jnp.int32) for last in last_seen], axis=0)
        logits = jnp.where(visible > 0, contract(keys, q, (1, 1)) * sm_scale, -jnp.inf)
        state = (self.maximum[...], self.total[...])
        # Sums so far are in units of the old maximum; a new one shrinks them before this step's are added.
        weights, shrink, (self.maximum[...], self.total[...]) = softmax_step(logits, state, key_axis=0)
        # A row without weight adds nothing; cleared, because 0 * NaN would.
        useful = jnp.max(weights, axis=1, keepdims=True) > 0
        values = jnp.where(useful, keys[:, :rank], 0)
        self.weighted[...] = self.weighted[...] * shrink + contract(values, weights.astype(keys.dtype), (0, 0))

    def output(self) -> jax.Array:
        """The attention output, f32[lanes, rank]."""
        return normalise(self.weighted[...], self.total[...]).T

    def lse(self) -> jax.Array:
        """Natural log of the softmax sum of the scaled logits, f32[1, lanes]; -inf where nothing was seen."""
        return self.maximum[...] + jnp.log(self.total[...])


def flat_queries(ql_nope: jax.Array, q_pe: jax.Array, tokens: int) -> jax.Array:
    """Queries as lanes of blocks, [tokens * heads, latent_width], the token axis padded to `tokens`."""
    q = pad_to(latent_rows(ql_nope, q_pe), tokens)
    return q.reshape(-1, q.shape[-1])


def per_lane(per_token: jax.Array, blocks: int, query_block: int, heads: int) -> jax.Array:
    """Spread i32[tokens, ...] over the lanes of each block, i32[blocks, ..., query_block * heads].

    Lanes behind the last token hold zeros, and what they give is dropped.
    """
    rows = pad_to(per_token.reshape(per_token.shape[0], -1), blocks * query_block)
    return jnp.repeat(jnp.swapaxes(rows.reshape(blocks, query_block, -1), 1, 2), heads, axis=2)
