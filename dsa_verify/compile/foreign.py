"""Pools in the layout of other packages: a compile of their kernels charges them no copy that an adapter makes."""

from collections.abc import Callable, Mapping
from typing import Any

from dsa_verify.compile.cases import POOLS, Case

_PACKING = ("sglang_jax", "tpu_inference")
"""Providers whose kernels keep a pool with the rows of a 32-bit word apart, `[pages, words, rows, width]`."""

CONVERTED = {
    ("tpu_inference", "index_topk"): "the adapter converts the whole pool of index keys to FP8 records, which is a "
    "copy of its own: whether their kernel makes another one is not judged"
}
"""Kernels whose adapter makes another pool of ours, and what cannot be said of them for that."""


def in_own_layout(case: Case, kernel: Callable[..., Any], specs: Mapping[str, Any]) -> tuple[Callable[..., Any], dict]:
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
