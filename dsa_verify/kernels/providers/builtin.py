"""The `builtin` provider: our own Pallas TPU kernels."""

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from dsa_verify import __version__
from dsa_verify.contract import SURFACES, Kernel, Promise, Provider
from dsa_verify.shapes import LANES

if TYPE_CHECKING:
    import jax

STEP = {"pages_per_step": 2}
BLOCK = {"query_block": 8}
INDEX_BLOCK = {"query_block": 16}  # two tiles of queries
"""Tiles for verification. Scenarios are small, and a step or block that swallows one whole would never reach
the second step, the rescaling of the running softmax, the reuse of a buffer, or a block of two sequences."""


def load() -> Provider:
    """All surfaces, tiled so that every scenario takes several steps and blocks."""
    from dsa_verify.kernels import pallas

    # A query takes its sequence's pages in order, from the first or as listed; what else a block does adds exact zeros.
    index = Promise(summation="sequence", **INDEX_BLOCK)  # pyright: ignore[reportArgumentType]
    dense = Promise(summation="sequence", **BLOCK)  # pyright: ignore[reportArgumentType]
    query = Promise(summation="sequence", query_block=1)
    # Pages of the block's other queries decide which pages make a step.
    union = Promise(summation="step", **BLOCK)  # pyright: ignore[reportArgumentType]
    return Provider(
        name="builtin",
        version=__version__,
        kernels={
            "index_topk": Kernel(_smallest_steps(pallas.index_topk), index),
            "index_page_topk": Kernel(_smallest_steps(pallas.index_page_topk), index),
            "dense_mla": Kernel(partial(pallas.dense_mla, **STEP, **BLOCK), dense),
            "sparse_mla_decode": Kernel(partial(pallas.sparse_mla_decode, **STEP), query),
            "sparse_mla_prefill": Kernel(partial(pallas.sparse_mla_prefill, **STEP), query),
            "sparse_mla_prefill_qblock": Kernel(partial(pallas.sparse_mla_prefill_qblock, **STEP, **BLOCK), union),
            "cache_write": Kernel(pallas.cache_write, Promise(query_block=1)),
            # Row n of a matrix product may be summed as XLA likes for where it stands.
            "indexer": Kernel(_smallest_steps(pallas.indexer), Promise(**INDEX_BLOCK)),  # pyright: ignore[reportArgumentType]
        },
    )


def serving() -> Provider:
    """The same kernels at their own tiles, of which nothing is promised here."""
    from dsa_verify.kernels import pallas

    kernels = {name: Kernel(getattr(pallas, name)) for name in SURFACES}
    return Provider("builtin", __version__, kernels, helpers={"write_rows": pallas.write_rows})


def _smallest_steps(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """An indexer kernel with steps of one lane tile of keys, the fewest that it takes."""

    @wraps(kernel)
    def tiled(*, index_cache: "jax.Array", **rest: Any) -> Any:
        step = max(1, LANES // index_cache.shape[1])
        return kernel(index_cache=index_cache, pages_per_step=step, **INDEX_BLOCK, **rest)

    return tiled
