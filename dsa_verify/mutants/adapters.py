"""Wrong metadata: what a faulty adapter or engine hands to a kernel that is right, one small function each.

Each takes a kernel and the operands of its surface, spoils them or the result, and calls the kernel.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

Kernel = Callable[..., Any]
Operands = Mapping[str, Any]


def wrap(fn: Kernel, wrong: Callable[..., Any]) -> Kernel:
    """`fn` as `wrong` calls it; jit-able as `fn` is."""
    return partial(wrong, fn)


def packed_table(fn: Kernel, **operands: Any) -> Any:
    """The table is packed, one sequence right behind the other, and read at a fixed stride."""
    table = operands["page_table"]
    flat = _packed(table, _kv_lens(operands), _page_size(operands))
    return fn(**operands | {"page_table": flat.reshape(table.shape)})


def unaligned_locations(fn: Kernel, **operands: Any) -> Any:
    """Sequences start in the packed table where their tokens add up to, not at whole pages."""
    import jax.numpy as jnp

    table, page_size = operands["page_table"], _page_size(operands)
    lens = _kv_lens(operands)
    flat = _packed(table, lens, page_size)
    start = (jnp.cumsum(lens) - lens) // page_size
    at = jnp.minimum(start[:, None] + jnp.arange(table.shape[1]), flat.size - 1)
    return fn(**operands | {"page_table": flat[at]})


def narrower_table(fn: Kernel, **operands: Any) -> Any:
    """Whoever reads the flat table believes it one entry a sequence narrower than whoever wrote it."""
    import jax.numpy as jnp

    table = operands["page_table"]
    seqs, width = table.shape
    at = jnp.arange(seqs)[:, None] * (width - 1) + jnp.arange(width)
    return fn(**operands | {"page_table": table.reshape(-1)[jnp.minimum(at, table.size - 1)]})


def real_counted_from_first(fn: Kernel, **operands: Any) -> Any:
    """A distribution that counts real sequences and takes the first that many: padding between them cuts off others."""
    import jax.numpy as jnp

    lens = operands["kv_lens"]
    counted = jnp.arange(lens.shape[0]) < jnp.sum(lens > 0)
    return fn(**operands | {"kv_lens": jnp.where(counted, lens, 0)})


def stale_positions(fn: Kernel, **operands: Any) -> Any:
    """Positions of the step before: every query believes itself one token earlier."""
    import jax.numpy as jnp

    positions = operands["positions"]
    return fn(**operands | {"positions": jnp.where(positions > 0, positions - 1, positions)})


def last_position_for_all(fn: Kernel, **operands: Any) -> Any:
    """Every query of a sequence gets the causal window of its last one, as if there were one query a sequence."""
    import jax.numpy as jnp

    seq = _seq_of_token(operands)
    last = operands["positions"][jnp.maximum(operands["cu_q_lens"][1:] - 1, 0)][seq]
    return fn(**operands | {"positions": jnp.where(operands["positions"] >= 0, last, -1)})


def locations_of_one_step_ahead(fn: Kernel, **operands: Any) -> Any:
    """Slots in `out_cache_loc` one further than the token's own."""
    import jax.numpy as jnp

    loc = operands["out_cache_loc"]
    return fn(**operands | {"out_cache_loc": jnp.where(loc >= 0, loc + 1, loc)})


def padding_lands_in_the_slot_before(fn: Kernel, **operands: Any) -> Any:
    """Padding tokens get the slot behind the real token before them: position -1 looked up in a neighbour's entries."""
    import jax.numpy as jnp

    loc = operands["out_cache_loc"]
    before = jnp.concatenate([loc[:1], loc[:-1]])
    return fn(**operands | {"out_cache_loc": jnp.where((loc < 0) & (before >= 0), before + 1, loc)})


def short_sequences_skip_scoring(fn: Kernel, **operands: Any) -> "jax.Array":
    """Sequences within the budget are believed to run dense, so their selection is never made: -1 throughout."""
    import jax.numpy as jnp

    chosen, budget = fn(**operands), operands["index_topk"]
    short = (operands["kv_lens"] <= budget)[_seq_of_token(operands)]
    return jnp.where(short[:, None], -1, chosen)


def half_of_the_heads(fn: Kernel, **operands: Any) -> tuple["jax.Array", ...]:
    """The kernel was made for fewer heads than there are: the others' output stays empty."""
    out, *rest = fn(**operands)
    return (out.at[:, out.shape[1] // 2 :].set(0), *rest)


def _page_size(operands: Operands) -> int:
    return operands["cache_kv" if "cache_kv" in operands else "index_cache"].shape[1]


def _kv_lens(operands: Operands) -> "jax.Array":
    from dsa_verify.kernels.providers.layout import kv_lens_of

    if "kv_lens" in operands:
        return operands["kv_lens"]
    return kv_lens_of(operands["positions"], operands["cu_q_lens"])


def _packed(table: "jax.Array", lens: "jax.Array", page_size: int) -> "jax.Array":
    from dsa_verify.kernels.providers.layout import packed

    return packed(table, lens, page_size)


def _seq_of_token(operands: Operands) -> "jax.Array":
    import jax.numpy as jnp

    cu_q_lens = operands["cu_q_lens"]
    tokens = next(operands[name].shape[0] for name in ("positions", "index_q", "ql_nope") if name in operands)
    return jnp.minimum(jnp.searchsorted(cu_q_lens[1:], jnp.arange(tokens), side="right"), cu_q_lens.shape[0] - 2)
