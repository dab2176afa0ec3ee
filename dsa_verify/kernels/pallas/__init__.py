"""Built-in Pallas TPU kernels, one file a surface; importing this imports JAX."""

from dsa_verify.kernels.pallas.cache_write import cache_write, write_rows
from dsa_verify.kernels.pallas.dense_mla import dense_mla
from dsa_verify.kernels.pallas.index_page_topk import index_page_topk
from dsa_verify.kernels.pallas.index_topk import index_topk
from dsa_verify.kernels.pallas.indexer import indexer
from dsa_verify.kernels.pallas.sparse_mla_decode import sparse_mla_decode
from dsa_verify.kernels.pallas.sparse_mla_prefill import sparse_mla_prefill
from dsa_verify.kernels.pallas.sparse_mla_prefill_qblock import sparse_mla_prefill_qblock

__all__ = [
    "cache_write",
    "dense_mla",
    "index_page_topk",
    "index_topk",
    "indexer",
    "sparse_mla_decode",
    "sparse_mla_prefill",
    "sparse_mla_prefill_qblock",
    "write_rows",
]
