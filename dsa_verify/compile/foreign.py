"""Kernels of other packages as those call them: pools in their own layout, and one kernel that is only compiled."""

from collections.abc import Callable, Mapping
from typing import Any

from dsa_verify.compile.cases import POOL_TOKENS, POOLS, CompileCase

_PACKING = ("sglang_jax", "tpu_inference")
"""Providers whose kernels keep a pool with the rows of a 32-bit word apart, `[pages, words, rows, width]`."""

CONVERTED = {
    ("tpu_inference", "index_topk"): "the adapter converts the whole pool of index keys to FP8 records, which is a "
    "copy of its own: whether their kernel makes another one is not judged"
}
"""Kernels whose adapter makes another pool of ours, and what cannot be said of them for that."""

UNRUN = {
    ("tpu_inference", "sparse_mla_prefill"): "their DeepSeek-V4 sparse MLA over FP8 records, merged with a sliding "
    "window's partial result; it gathers on the SparseCore, so it is compiled here and nothing runs it"
}
"""Kernels that stand for a surface although `parity` has no adapter for them, and what they are."""
NOTES = {**CONVERTED, **UNRUN}
"""What a reader of an accepted compile has to know."""
_LATENT, _PIECE, _LANES = 512, 4, 128
"""DeepSeek-V4's head; a record is four rows of 128 bytes, its rotary part one such row for each of four tokens."""


def unrun_specs(case: CompileCase, pool_tokens: int = POOL_TOKENS) -> dict[str, Any]:
    """The specs of the call of an `UNRUN` case: the case's sizes, the kernel's own arrays.

    Source: tpu-inference, kernels/experimental/deepseek_v4/core_attention/sparse_mla.py, the docstring of its entry.
    """
    import jax

    size = case.lengths(pool_tokens)
    budget = size["k_pages"] * case.page_size
    tokens, heads, seqs, pages = size["tokens"], size["heads"], size["seqs"], size["pages"]
    arrays = {
        "q": ((tokens, heads, _LATENT), "bfloat16"),
        "cache_kv_nope": ((pages, case.page_size, _PIECE, _LANES), "uint8"),
        "cache_kv_rope": ((pages, case.page_size // _PIECE, _PIECE, _LANES), "uint8"),
        "topk_indices": ((tokens, budget), "int32"),
        "page_indices": ((seqs * size["pages_per_seq"],), "int32"),
        "cu_q_lens": ((seqs + 1,), "int32"),
        "distribution": ((3,), "int32"),
        "attention_sinks": ((heads,), "float32"),
        "swa_accumution": ((tokens, heads, _LATENT), "bfloat16"),
        "swa_l": ((tokens, heads), "float32"),
        "swa_m": ((tokens, heads), "float32"),
    }
    return {name: jax.ShapeDtypeStruct(*array) for name, array in arrays.items()}


def in_own_layout(
    case: CompileCase, kernel: Callable[..., Any], specs: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict]:
    """The kernel of a case with its pools laid out as its package keeps them, and the specs of that call.

    The adapter packs what is unpacked here: two reshapes that the compiler takes away, where one alone would be a copy.
    """
    if case.provider not in _PACKING or (case.provider, case.surface) in CONVERTED:
        return kernel, dict(specs)
    import jax

    from dsa_verify.kernels.providers import layout

    pools = [name for name in POOLS if name in specs]
    unpacked = {specs[name].shape for name in pools}

    def call(**arrays: Any) -> list[Any]:
        outputs = kernel(**arrays | {name: layout.unpack_cache(arrays[name]) for name in pools})
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return [layout.pack_cache(x) if x is not None and x.shape in unpacked else x for x in outputs]

    return call, {**specs, **{name: jax.eval_shape(layout.pack_cache, specs[name]) for name in pools}}
