"""The `jnp` provider: every surface in plain jax.numpy."""

from dsa_verify import __version__
from dsa_verify.contract import Kernel, Promise, Provider


def load() -> Provider:
    """All surfaces; attention weights stay in float32 whatever the cache's dtype."""
    from dsa_verify.kernels.jnp import attention, indexer, ragged

    # Every row is computed over the same [pages_per_seq * page_size] columns, wherever it stands.
    scores = Promise(summation="sequence")
    exact = Promise(summation="sequence", probability_dtype="float32")
    return Provider(
        name="jnp",
        version=__version__,
        kernels={
            "index_topk": Kernel(indexer.index_topk, scores),
            "index_page_topk": Kernel(indexer.index_page_topk, scores),
            "dense_mla": Kernel(attention.dense_mla, exact),
            "sparse_mla_decode": Kernel(attention.sparse_mla_decode, exact),
            "sparse_mla_prefill": Kernel(attention.sparse_mla_prefill, exact),
            "sparse_mla_prefill_qblock": Kernel(attention.sparse_mla_prefill_qblock, exact),
            "cache_write": Kernel(attention.cache_write),
            "indexer": Kernel(indexer.indexer),
        },
        helpers={"write_rows": ragged.write_rows, "sparse_mla_tokens": attention.sparse_mla_tokens},
    )
