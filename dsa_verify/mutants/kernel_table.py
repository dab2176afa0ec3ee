"""The kernel mutants: kernels broken on purpose, the kind of bug each stands for, and what kills it."""

from dsa_verify.mutants import adapters
from dsa_verify.mutants.kernel import KernelMutant, KernelWrapper
from dsa_verify.mutants.source import SourceEdit

_PREFILL = ("builtin", "sparse_mla_prefill")
_QBLOCK = ("builtin", "sparse_mla_prefill_qblock")
_DENSE = ("builtin", "dense_mla")
_DECODE = ("builtin", "sparse_mla_decode")
_WRITE = ("builtin", "cache_write")
_TOPK = ("builtin", "index_topk")
_PAGES = ("builtin", "index_page_topk")
_INDEXER = ("builtin", "indexer")
_PLAIN_INDEXER = ("jnp", "indexer")

_HADAMARD = """    sign = jnp.bitwise_count(jnp.arange(dim)[:, None] & jnp.arange(dim)) % 2
    query = jnp.einsum("thd,de->the", query, (1.0 - 2.0 * sign) * dim**-0.5, precision="highest")
    query, key = (rotate(x, turn, convention)"""
"""A Walsh-Hadamard rotation of the queries alone, in front of what follows it."""

TABLE: tuple[KernelMutant, ...] = (
    KernelMutant(
        "causal-bound-strict", "15", *_PREFILL,
        SourceEdit("query_attention", "1, step, page_size) <= position", "1, step, page_size) < position"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "first-request-pages", "25", *_PREFILL,
        SourceEdit(
            "sparse_mla_prefill",
            "jnp.take_along_axis(page_table[seq], topk_pages, axis=1)",
            "jnp.take_along_axis(page_table[0 * seq], topk_pages, axis=1)",
        ),
        "several-unequal-p16-f32", "parity",
    ),
    KernelMutant(
        "next-request-pages", "25", *_QBLOCK,
        SourceEdit(
            "sparse_mla_prefill_qblock",
            "seq[:, None] * pages_per_seq + topk_pages",
            "(seq[:, None] ^ 1) * pages_per_seq + topk_pages",
        ),
        "prefix-aligned-p16-f32", "isolation",
    ),
    KernelMutant(
        "values-not-cleared", "22", *_PREFILL,
        SourceEdit("query_attention", "values = jnp.where(clean, keys[:, :rank], 0)", "values = keys[:, :rank]"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "block-values-not-cleared", "22", *_DENSE,
        SourceEdit("block_attention", "values = jnp.where(useful, keys[:, :rank], 0)", "values = keys[:, :rank]"),
        "single-extend-p16-f32", "isolation",
    ),
    KernelMutant(
        "padding-wraps", "41", "jnp", "cache_write",
        SourceEdit("ragged", 'mode="drop", wrap_negative_indices=False', 'mode="drop"'),
        "padding-tokens-p16-f32", "cache",
    ),
    KernelMutant(
        "padding-written", "41", "builtin", "cache_write",
        SourceEdit("cache_write", "opens = (tile >= 0) & (tile", "opens = (tile"),
        "padding-sequences-between-p16-f32", "races",
    ),
    KernelMutant(
        "neighbour-row-overwritten", "47", "builtin", "cache_write",
        SourceEdit("cache_write", "(row < into + self.runs", "(row <= into + self.runs"),
        "several-unequal-p16-f32", "cache",
    ),
    KernelMutant(
        "rotary-part-not-written", "written", "builtin", "cache_write",
        SourceEdit(
            "layout",
            "    pe = pad_to(pe, align(pe.shape[-1], LANES), axis=-1)",
            "    pe = 0 * pad_to(pe, align(pe.shape[-1], LANES), axis=-1)",
        ),
        "single-extend-p16-f32", "cache",
    ),
    KernelMutant(
        "pages-not-awaited", "59", *_PREFILL,
        SourceEdit("query_attention", "buffers.wait(listed, at, slot)", "pass"),
        "single-extend-p16-f32", "races",
    ),
    KernelMutant(
        "ring-too-short", "59", *_QBLOCK,
        SourceEdit("sparse_mla_prefill_qblock", "start(at + RING - 1)\n", "start(at + RING)\n"),
        "single-extend-p16-f32", "races",
    ),
    KernelMutant(
        "write-not-awaited", "59", "builtin", "cache_write",
        SourceEdit(
            "cache_write",
            "(writer.start_reads, writer.merge_and_start_write, writer.wait_write)",
            "(writer.start_reads, writer.merge_and_start_write)",
        ),
        "several-unequal-p16-f32", "races",
    ),
    KernelMutant(
        "scale-of-latent-width", "26", *_DENSE,
        SourceEdit("dense_mla", "sm_scale=sm_scale,\n        step=", "sm_scale=(rank + 64) ** -0.5,\n        step="),
        "single-extend-p64-bf16", "parity",
    ),
    KernelMutant(
        "scale-one-percent", "26", *_DECODE,
        SourceEdit(
            "query_attention",
            "contract(q_ref[0], keys, (1, 1)) * sm_scale",
            "contract(q_ref[0], keys, (1, 1)) * (1.01 * sm_scale)",
        ),
        "decode-page-edges-d16-bf16", "parity",
    ),
    KernelMutant(
        "softmax-not-rescaled", "softmax", *_QBLOCK,
        SourceEdit("block_attention", "self.weighted[...] * shrink +", "self.weighted[...] +"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "lse-base-two", "27", *_QBLOCK,
        SourceEdit(
            "block_attention",
            "self.maximum[...] + jnp.log(self.total[...])",
            "(self.maximum[...] + jnp.log(self.total[...])) / jnp.log(2.0)",
        ),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "empty-row-divides", "23", *_PREFILL,
        SourceEdit("flash", "accumulated / jnp.where(total == 0.0, 1.0, total)", "accumulated / total"),
        "masked-rows-p16-f32", "parity",
    ),
    KernelMutant(
        "own-page-forgotten", "own", *_DECODE,
        SourceEdit(
            "sparse_mla_decode",
            "jnp.where(logical >= 0, ",
            "jnp.where((logical >= 0) & (logical != own), ",
        ),
        "masked-decode-d16-bf16", "parity",
    ),
    KernelMutant(
        "selection-ignored", "39", "jnp", "sparse_mla_prefill",
        SourceEdit("attention", "    if chosen is not None:\n        visible &= chosen\n", ""),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "no-relu", "03", "jnp", "index_topk",
        SourceEdit("indexer", "jnp.maximum(dots, 0.0)", "dots"),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "ties-highest-first", "07", "jnp", "index_topk",
        SourceEdit(
            "indexer",
            "    values, columns = jax.lax.top_k(scores, k)",
            "    values, columns = jax.lax.top_k(scores[:, ::-1], k)\n    columns = scores.shape[1] - 1 - columns",
        ),
        "ties-plateau-p16-f32", "selection",
    ),
    KernelMutant(
        "future-scored", "15", "jnp", "index_page_topk",
        SourceEdit(
            "indexer",
            "jnp.arange(scores.shape[1]) <= placement.position[:, None]",
            "jnp.arange(scores.shape[1]) <= kv_lens[placement.seq][:, None]",
        ),
        "single-extend-p16-f32", "selection",
    ),
    # What follows stands for the remaining kinds of the log, in its order.
    KernelMutant(
        "head-sum-without-relu", "03", *_PAGES,
        SourceEdit("indexing", "jnp.maximum(products, 0.0).reshape", "products.reshape"),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "relu-after-weight", "03", *_TOPK,
        SourceEdit(
            "indexing",
            "jnp.sum(jnp.maximum(products, 0.0).reshape(TILE, heads, keys) * weights, axis=1)",
            "jnp.sum(jnp.maximum(products.reshape(TILE, heads, keys) * weights, 0.0), axis=1)",
        ),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "first-head-only", "03", "jnp", "index_topk",
        SourceEdit("indexer", "jnp.sum(jnp.maximum(dots, 0.0) * index_weights[:, :, None], axis=1)",
                   "(jnp.maximum(dots, 0.0) * index_weights[:, :, None])[:, 0]"),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "head-weights-rounded", "06", *_TOPK,
        SourceEdit(
            "indexing", 'arrays["index_weights"].astype(jnp.float32)',
            'jax.lax.reduce_precision(arrays["index_weights"], 8, 7)',
        ),
        "table-reversed-p16-f32", "selection",
    ),
    KernelMutant(
        "page-ties-highest-first", "07", *_PAGES,
        SourceEdit(
            "indexing", "    value, column = lax.top_k(scores, min(k, scores.shape[1]))",
            "    value, column = lax.top_k(scores[:, ::-1], min(k, scores.shape[1]))\n"
            "    column = scores.shape[1] - 1 - column",
        ),
        "ties-few-values-p16-f32", "selection",
    ),
    KernelMutant(
        "coarse-bucket-only", "08", *_TOPK,
        SourceEdit("indexing", "lax.top_k(scores, min(k", "lax.top_k(jax.lax.reduce_precision(scores, 8, 3), min(k"),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "plateau-leaves-holes", "09", *_TOPK,
        SourceEdit(
            "indexing", "jnp.where(value > -jnp.inf, column, -1)",
            "jnp.where((value > value[:, -1:]) | ((value > -jnp.inf) & (jnp.arange(value.shape[1]) < 32)), column, -1)",
        ),
        "ties-plateau-p16-f32", "selection",
    ),
    KernelMutant(
        "row-end-from-query-start", "12", *_TOPK,
        SourceEdit("indexing", "block.row + kv_len - end, step", "block.row + kv_len - end + start, step"),
        "several-unequal-p16-f32", "selection",
    ),
    KernelMutant(
        "unfinished-page-visible", "13", *_PAGES,
        SourceEdit(
            "indexing", "    return jnp.where(key <= last_key, scores, -jnp.inf)",
            "    return jnp.where((key // 16 <= last_key // 16) & (last_key >= 0), scores, -jnp.inf)",
        ),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "only-the-chunk-scored", "14", "jnp", "index_topk",
        SourceEdit(
            "indexer", "    return jnp.where(causal, scores, -jnp.inf)",
            "    causal &= jnp.arange(scores.shape[1]) >= (kv_lens - jnp.diff(cu_q_lens))[placement.seq][:, None]\n"
            "    return jnp.where(causal, scores, -jnp.inf)",
        ),
        "chunk-off-page-p16-f32", "selection",
    ),
    KernelMutant(
        "only-the-history-scored", "15", *_TOPK,
        SourceEdit("indexing", "jnp.where(key <= last_key", "jnp.where(key < last_key"),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "masked-candidates-returned", "16", *_TOPK,
        SourceEdit("indexing", "jnp.where(value > -jnp.inf, column, -1)", "column"),
        "single-prefill-p16-f32", "selection",
    ),
    KernelMutant("window-of-the-last-row", "21", *_PREFILL, KernelWrapper(adapters.last_position_for_all),
                 "single-extend-p16-f32", "parity"),
    KernelMutant(
        "indexer-window-of-the-last-row", "21", *_TOPK,
        SourceEdit("indexing", "jnp.where(mine, row + item.shift, -1)",
                   "jnp.where(mine, item.end_row - 1 + item.shift, -1)"),
        "single-extend-p16-f32", "selection",
    ),
    *(
        KernelMutant(f"packed-table-{surface.replace('_', '-')}", "25", "jnp", surface,
                     KernelWrapper(adapters.packed_table), scenario, check)
        for surface, scenario, check in (
            ("index_topk", "several-unequal-p16-f32", "selection"),
            ("index_page_topk", "several-unequal-p16-f32", "selection"),
            ("dense_mla", "several-unequal-p16-f32", "parity"),
            ("sparse_mla_decode", "decode-page-edges-d16-bf16", "parity"),
            ("sparse_mla_prefill", "several-unequal-p16-f32", "parity"),
            ("sparse_mla_prefill_qblock", "several-unequal-p16-f32", "parity"),
        )
    ),
    KernelMutant(
        "page-offset-in-8-bits", "30", *_DENSE,
        SourceEdit(
            "layout", "slot = page_table[seq, position // page_size] * page_size + position % page_size",
            "slot = (page_table[seq, position // page_size] * page_size).astype(jnp.int8) + position % page_size",
        ),
        "single-extend-p16-f32", "cache",
    ),
    KernelMutant(
        "page-id-in-6-bits", "30", *_DECODE,
        SourceEdit("query_attention", "self.cache.at[page], self", "self.cache.at[page & 63], self"),
        "table-decode-high-pages-d16-bf16", "parity",
    ),
    KernelMutant(
        "padding-rows-not-written", "32", *_PREFILL,
        SourceEdit(
            "query_attention", "    out_ref[0] = normalise(accumulated, total).astype(out_ref.dtype)",
            "    @pl.when(position >= 0)\n"
            "    def _():\n"
            "        out_ref[0] = normalise(accumulated, total).astype(out_ref.dtype)",
        ),
        "padding-tokens-p16-f32", "isolation",
    ),
    KernelMutant(
        "logits-in-bfloat16", "33", *_DENSE,
        SourceEdit("flash", "preferred_element_type=jnp.float32,\n    )",
                   "preferred_element_type=jnp.bfloat16,\n    ).astype(jnp.float32)"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "running-sum-in-bfloat16", "33", *_QBLOCK,
        SourceEdit(
            "flash", "(new, total * shrink + jnp.sum(weights, axis=key_axis, keepdims=True))",
            "(new, lax.reduce_precision(total * shrink + jnp.sum(weights, axis=key_axis, keepdims=True), 8, 7))",
        ),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant("short-prefill-not-scored", "38", "jnp", "index_topk",
                 KernelWrapper(adapters.short_sequences_skip_scoring), "mixed-decode-and-chunk-p16-f32", "selection"),
    KernelMutant(
        "sparse-where-dense-is-due", "39", "jnp", "dense_mla",
        SourceEdit("attention", "page_table, placement, None, sm_scale)",
                   "page_table, placement, jnp.zeros((ql_nope.shape[0], 1), jnp.int32), sm_scale)"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant("half-of-the-heads", "40", *_QBLOCK, KernelWrapper(adapters.half_of_the_heads),
                 "single-extend-p16-f32", "parity"),
    KernelMutant(
        "padding-slot-written", "42", *_DECODE,
        SourceEdit("sparse_mla_decode", "jnp.where(kv_lens > 0, seq, -1), kv_lens - 1", "seq, kv_lens - 1"),
        "padding-decode-between-d16-bf16", "cache",
    ),
    KernelMutant("padding-written-beside-a-neighbour", "42", "jnp", "cache_write",
                 KernelWrapper(adapters.padding_lands_in_the_slot_before), "padding-decode-between-d16-bf16", "cache"),
    KernelMutant(
        "rotary-read-where-it-was-not-written", "44", "jnp", "dense_mla",
        SourceEdit("attention", "rows[:, at : at + q_pe.shape[-1]]", "rows[:, -q_pe.shape[-1] :]"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant("locations-not-page-aligned", "48", "jnp", "sparse_mla_prefill",
                 KernelWrapper(adapters.unaligned_locations), "several-unequal-p16-f32", "parity"),
    KernelMutant("table-one-narrower", "50", "jnp", "index_page_topk", KernelWrapper(adapters.narrower_table),
                 "several-unequal-p16-f32", "selection"),
    KernelMutant("table-one-narrower-decode", "50", "jnp", "sparse_mla_decode", KernelWrapper(adapters.narrower_table),
                 "decode-page-edges-d16-bf16", "parity"),
    KernelMutant(
        "prologue-for-a-sequence-without-work", "51", *_DENSE,
        SourceEdit("dense_mla", "here = seq < self", "here = seq <= self"),
        "several-zero-length-p16-f32", "races",
    ),
    KernelMutant(
        "gather-truncated", "53", "jnp", "index_topk",
        SourceEdit("ragged", "    return pages.reshape(pages.shape[0], -1, cache.shape[-1])",
                   "    return pages.reshape(pages.shape[0], -1, cache.shape[-1]).at[:, 128:].set(0)"),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "pages-of-attention-truncated", "53", "jnp", "sparse_mla_prefill",
        SourceEdit("ragged", "    return pages.reshape(pages.shape[0], -1, cache.shape[-1])",
                   "    return pages.reshape(pages.shape[0], -1, cache.shape[-1]).at[:, 128:].set(0)"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "keys-not-awaited", "59", *_TOPK,
        SourceEdit("indexing", "            self._wait(item, buffer)\n", ""),
        "single-extend-p16-f32", "races",
    ),
    KernelMutant(
        "ring-of-keys-too-short", "59", *_PAGES,
        SourceEdit("indexing", "            ahead = index + BUFFERS - 1\n", "            ahead = index + BUFFERS\n"),
        "several-unequal-p16-f32", "races",
    ),
    KernelMutant("positions-of-the-step-before", "metadata", *_QBLOCK, KernelWrapper(adapters.stale_positions),
                 "single-extend-p16-f32", "parity"),
    KernelMutant("slots-one-further", "metadata", *_WRITE, KernelWrapper(adapters.locations_of_one_step_ahead),
                 "several-unequal-p16-f32", "cache"),
    KernelMutant("real-sequences-counted-from-the-first", "metadata", "jnp", "dense_mla",
                 KernelWrapper(adapters.real_counted_from_first), "padding-sequences-between-p16-f32", "parity"),
    KernelMutant(
        "pages-of-a-sequence-without-queries", "traffic", *_DENSE,
        SourceEdit(
            "dense_mla", "jnp.where(cu_q_lens[seq] < cu_q_lens[seq + 1], pl.cdiv(visible, self.buffers.shape[2]), 0)",
            "pl.cdiv(visible, self.buffers.shape[2])",
        ),
        "several-zero-length-p16-f32", "traffic",
    ),
    KernelMutant(
        "lanes-in-evened-out-blocks", "50", *_QBLOCK,
        SourceEdit(
            "block_attention", "    rows = pad_to(per_token.reshape(per_token.shape[0], -1), blocks * query_block)\n",
            "    query_block = -(-per_token.shape[0] // blocks)\n"
            "    rows = pad_to(per_token.reshape(per_token.shape[0], -1), blocks * query_block)\n",
        ),
        "many-requests-wide-p16-f32", "parity",
    ),
    KernelMutant(
        "pages-behind-the-block", "traffic", *_DENSE,
        SourceEdit("dense_mla", "jnp.minimum(cu_q_lens[seq + 1], (self.this + 1) * self.block) - 1",
             "cu_q_lens[seq + 1] - 1"),
        "many-requests-wide-p16-f32", "traffic",
    ),
    KernelMutant(
        "half-split-for-interleaved", "02", *_INDEXER,
        SourceEdit("indexer", 'if convention.rope == "interleaved":', "if False:"),
        "single-extend-p16-f32", "cache",
    ),
    KernelMutant(
        "interleaved-for-half-split", "01", *_INDEXER,
        SourceEdit("indexer", 'if convention.rope == "interleaved":', "if True:"),
        "single-extend-p64-bf16", "cache",
    ),
    KernelMutant(
        "queries-in-the-other-rotary-layout", "02", *_PLAIN_INDEXER,
        SourceEdit(
            "projections",
            "    query, key = (rotate(x, turn, convention).astype(hidden.dtype) for x in (query, key))\n",
            "    query = rotate(query, turn, type(convention)('half_split')).astype(hidden.dtype)\n"
            "    key = rotate(key, turn, convention).astype(hidden.dtype)\n",
        ),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "rotary-part-behind-the-rest", "02", *_PLAIN_INDEXER,
        SourceEdit("projections", "    rope = x[..., : convention.rope_dim]\n",
                   "    x = jnp.roll(x, convention.rope_dim, axis=-1)\n    rope = x[..., : convention.rope_dim]\n"),
        "single-extend-p16-f32", "cache",
    ),
    KernelMutant(
        "relu-missing-in-the-module", "03", *_PLAIN_INDEXER,
        SourceEdit("indexer", "jnp.maximum(dots, 0.0) * index_weights", "dots * index_weights"),
        "single-prefill-p16-f32", "selection",
    ),
    KernelMutant(
        "head-weights-missing", "03", *_PLAIN_INDEXER,
        SourceEdit("projections", "    turn = turns",
                   "    weights = jnp.full_like(weights, (heads * dim) ** -0.5)\n    turn = turns"),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "hadamard-on-queries-only", "04", *_PLAIN_INDEXER,
        SourceEdit("projections", "    query, key = (rotate(x, turn, convention)", _HADAMARD),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "root-mean-square-norm-of-keys", "05", *_INDEXER,
        SourceEdit("indexer", "centred = x - jnp.mean(x, axis=-1, keepdims=True)", "centred = x"),
        "single-extend-p64-bf16", "cache",
    ),
    KernelMutant(
        "epsilon-of-the-models-other-norms", "05", *_INDEXER,
        SourceEdit("indexer", "lax.rsqrt(variance + eps)", "lax.rsqrt(variance + 10 * eps)"),
        "single-extend-p64-bf16", "cache",
    ),
    KernelMutant(
        "norm-without-its-bias", "05", *_INDEXER,
        SourceEdit("indexer", " + bias.astype(jnp.float32)", ""),
        "single-extend-p16-f32", "cache",
    ),
    KernelMutant(
        "head-weights-in-bfloat16", "06", *_PLAIN_INDEXER,
        SourceEdit("projections", "    turn = turns",
                   "    weights = jax.lax.reduce_precision(weights, 8, 7)\n    turn = turns"),
        "single-extend-p16-f32", "selection",
    ),
    KernelMutant(
        "scale-of-heads-missing", "index scale", *_INDEXER,
        SourceEdit("indexer", "(heads * dim) ** -0.5", "dim ** -0.5"),
        "single-prefill-p16-f32", "selection",
    ),
    KernelMutant(
        "scale-missing", "index scale", *_PLAIN_INDEXER,
        SourceEdit("projections", " * (heads * dim) ** -0.5", ""),
        "single-extend-p64-bf16", "selection",
    ),
    KernelMutant(
        "highest-position-among-equals", "07", *_PLAIN_INDEXER,
        SourceEdit("indexer", "    values, columns = jax.lax.top_k(scores, k)\n",
                   "    values, columns = jax.lax.top_k(scores[:, ::-1], k)\n"
                   "    columns = scores.shape[1] - 1 - columns\n"),
        "ties-plateau-p16-f32", "selection",
    ),
    KernelMutant(
        "keys-of-this-step-not-written", "20", *_PLAIN_INDEXER,
        SourceEdit("indexer", "write_rows(keys, index_cache, out_cache_loc)", "index_cache"),
        "single-extend-p16-f32", "cache",
    ),
    KernelMutant(
        "keys-written-after-scoring", "20", *_PLAIN_INDEXER,
        SourceEdit("indexer", "_scores(query, weights, written,",
                   "_scores(query, weights, jnp.nan_to_num(index_cache),"),
        "single-extend-p16-f32", "selection",
    ),
    # The faults that the gate is shown by its built-in arm, `dsa-verify gate --mutant NAME`.
    KernelMutant(
        "page-stride", "25", "jnp", "sparse_mla_prefill_qblock",
        SourceEdit("attention", "of_position = jnp.arange(kv, dtype=jnp.int32) // page_size",
                   "of_position = jnp.arange(kv, dtype=jnp.int32) // (2 * page_size)"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "causal-bound", "15", "jnp", "sparse_mla_prefill_qblock",
        SourceEdit("attention", "jnp.arange(page_table.shape[1] * cache.shape[1]) <= placement.position[:, None]",
                   "jnp.arange(page_table.shape[1] * cache.shape[1]) < placement.position[:, None]"),
        "single-extend-p16-f32", "parity",
    ),
    KernelMutant(
        "causal-bound-pallas", "15", *_QBLOCK,
        SourceEdit("block_attention", "(row <= last)", "(row < last)"),
        "single-extend-p16-f32", "parity", same_as="causal-bound",
    ),
    KernelMutant(
        "top-1-page", "53", "jnp", "sparse_mla_prefill_qblock",
        SourceEdit("attention", "    chosen = _in_pages(topk_pages, ", "    chosen = _in_pages(topk_pages[:, :1], "),
        "single-extend-p16-f32", "parity",
    ),
)  # fmt: skip
