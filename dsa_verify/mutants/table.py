"""The handwritten mutants: kernels broken on purpose, the kind of bug each stands for, and what kills it."""

from dataclasses import dataclass

from dsa_verify.kernels.contract import Provider
from dsa_verify.mutants.source import Patch, with_patches

_PACKAGES = {"builtin": "dsa_verify.kernels.pallas", "jnp": "dsa_verify.kernels.jnp"}


@dataclass(frozen=True)
class Mutant:
    """A provider broken on purpose.

    kind: the kind of bug it stands for; a number refers to the public bug log the suite is built against.
    module, old, new: the source replaced, in `provider`'s package.
    scenario: a cheap scenario that shows it on `surface`. check: a check that must reject it there.
    """

    name: str
    kind: str
    provider: str
    surface: str
    module: str
    old: str
    new: str
    scenario: str
    check: str

    def load(self) -> Provider:
        """The broken provider. Raises `StaleMutant` when the source it replaces has moved on."""
        from dsa_verify.kernels.providers import load_provider

        package = _PACKAGES[self.provider]
        patch = Patch(f"{package}.{self.module}", self.old, self.new)
        return with_patches(package, [patch], lambda: load_provider(self.provider))


_PREFILL = ("builtin", "sparse_mla_prefill")
_QBLOCK = ("builtin", "sparse_mla_prefill_qblock")
_DENSE = ("builtin", "dense_mla")
_DECODE = ("builtin", "sparse_mla_decode")

_MUTANTS = [
    Mutant(
        "causal-bound-strict", "15 causal bound off by one", *_PREFILL,
        "query_attention", "(1, step * page_size), 1) <= position", "(1, step * page_size), 1) < position",
        "single-extend-p16-f32", "parity",
    ),
    Mutant(
        "first-request-pages", "25 page table read with the wrong base", *_PREFILL,
        "sparse_mla_prefill", "mine = page_table[jnp.minimum(seq, page_table.shape[0] - 1)]",
        "mine = page_table[jnp.minimum(seq, 0)]",
        "several-unequal-p16-f32", "parity",
    ),
    Mutant(
        "next-request-pages", "25 page table read with the wrong base", *_QBLOCK,
        "sparse_mla_prefill_qblock", "seq[:, None] * pages_per_seq + topk_pages",
        "(seq[:, None] ^ 1) * pages_per_seq + topk_pages",
        "prefix-aligned-p16-f32", "isolation",
    ),
    Mutant(
        "values-not-cleared", "22 masked lanes multiply poisoned memory", *_PREFILL,
        "query_attention", "values = jnp.where(clean, keys[:, :rank], 0)", "values = keys[:, :rank]",
        "single-extend-p16-f32", "parity",
    ),
    Mutant(
        "block-values-not-cleared", "22 masked lanes multiply poisoned memory", *_DENSE,
        "block_attention", "values = jnp.where(useful, keys[:, :rank], 0)", "values = keys[:, :rank]",
        "single-extend-p16-f32", "isolation",
    ),
    Mutant(
        "padding-wraps", "41 slot -1 wraps to the last slot", "jnp", "cache_write",
        "attention", 'mode="drop", wrap_negative_indices=False', 'mode="drop"',
        "padding-tokens-p16-f32", "cache",
    ),
    Mutant(
        "padding-written", "41 slot -1 is written", "builtin", "cache_write",
        "cache_write", "opens = (tile >= 0) & (tile", "opens = (tile",
        "padding-sequences-between-p16-f32", "races",
    ),
    Mutant(
        "neighbour-row-overwritten", "47 a write reaches beyond its rows", "builtin", "cache_write",
        "cache_write", "(row < into + length[run])", "(row <= into + length[run])",
        "several-unequal-p16-f32", "cache",
    ),
    Mutant(
        "rotary-part-not-written", "cache write loses columns", "builtin", "cache_write",
        "layout", "    pe = pad_to(pe, align(pe.shape[-1], LANES), axis=-1)",
        "    pe = 0 * pad_to(pe, align(pe.shape[-1], LANES), axis=-1)",
        "single-extend-p16-f32", "cache",
    ),
    Mutant(
        "pages-not-awaited", "59 missing wait", *_PREFILL,
        "query_attention", "for_each_copy(lists, at, slot, lambda copy: copy.wait())", "pass",
        "single-extend-p16-f32", "races",
    ),
    Mutant(
        "ring-too-short", "59 buffer reused while it is read", *_QBLOCK,
        "sparse_mla_prefill_qblock", "start(at + RING - 1)\n", "start(at + RING)\n",
        "single-extend-p16-f32", "races",
    ),
    Mutant(
        "write-not-awaited", "59 missing wait", "builtin", "cache_write",
        "cache_write", "(start_reads, merge_and_start_write, wait_write)", "(start_reads, merge_and_start_write)",
        "several-unequal-p16-f32", "races",
    ),
    Mutant(
        "scale-of-latent-width", "26 softmax scale from the latent width", *_DENSE,
        "dense_mla", "sm_scale=sm_scale,\n        step=", "sm_scale=(rank + 64) ** -0.5,\n        step=",
        "single-extend-p64-bf16", "parity",
    ),
    Mutant(
        "scale-one-percent", "26 softmax scale slightly off", *_DECODE,
        "query_attention", "contract(q_ref[0], keys, (1, 1)) * sm_scale",
        "contract(q_ref[0], keys, (1, 1)) * (1.01 * sm_scale)",
        "decode-page-edges-d16-bf16", "parity",
    ),
    Mutant(
        "softmax-not-rescaled", "online softmax keeps an old maximum's weight", *_QBLOCK,
        "block_attention", "self.weighted[...] * shrink +", "self.weighted[...] +",
        "single-extend-p16-f32", "parity",
    ),
    Mutant(
        "lse-base-two", "27 log-sum-exp in the wrong base", *_QBLOCK,
        "block_attention", "self.maximum[...] + jnp.log(self.total[...])",
        "(self.maximum[...] + jnp.log(self.total[...])) / jnp.log(2.0)",
        "single-extend-p16-f32", "parity",
    ),
    Mutant(
        "empty-row-divides", "23 nothing selected divides 0 by 0", *_PREFILL,
        "flash", "accumulated / jnp.where(total == 0.0, 1.0, total)", "accumulated / total",
        "masked-rows-p16-f32", "parity",
    ),
    Mutant(
        "own-page-forgotten", "decode leaves out its own token", *_DECODE,
        "sparse_mla_decode", "listed = (logical >= 0) & (kv_lens", "listed = (logical >= 0) & (logical != own) & (kv_lens",
        "masked-decode-d16-bf16", "parity",
    ),
    Mutant(
        "selection-ignored", "39 dense where sparse is due", "jnp", "sparse_mla_prefill",
        "attention", "    if pages is not None:\n", "    if pages is None:\n",
        "single-extend-p16-f32", "parity",
    ),
    Mutant(
        "no-relu", "03 ReLU missing before the head sum", "jnp", "index_topk",
        "indexer", "jnp.maximum(dots, 0.0)", "dots",
        "single-extend-p16-f32", "selection",
    ),
    Mutant(
        "ties-highest-first", "07 ties not broken by position", "jnp", "index_topk",
        "indexer", "    values, columns = jax.lax.top_k(scores, k)",
        "    values, columns = jax.lax.top_k(scores[:, ::-1], k)\n    columns = scores.shape[1] - 1 - columns",
        "ties-plateau-p16-f32", "selection",
    ),
    Mutant(
        "future-scored", "15 indexer without a causal mask", "jnp", "index_page_topk",
        "indexer", "jnp.arange(keys.shape[1]) <= placement.position[:, None]",
        "jnp.arange(keys.shape[1]) <= kv_lens[placement.seq][:, None]",
        "single-extend-p16-f32", "selection",
    ),
]  # fmt: skip

MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _MUTANTS}
