"""The system mutants: backend, decoder and runner broken on purpose, and the engines; kinds, and what kills each."""

from collections.abc import Callable
from itertools import count

import numpy as np

from dsa_verify.engine import Step
from dsa_verify.mutants.engine_table import ENGINE_MUTANTS
from dsa_verify.mutants.source import SourceEdit
from dsa_verify.mutants.system import MethodReplacement, Patcher, SystemMutant

_BACKEND, _DECODER = "backend", "decoder"


def selection_of_the_step_before(patch: Patcher) -> None:
    """Shared layers keep the selection on an object that outlives the step, and read it before it is renewed."""
    import jax
    from jax.experimental import io_callback

    from dsa_verify.model import decoder, runner
    from dsa_verify.model.backend import Caches, Inputs, Layer, LayerPath, Metadata, Output, Selection
    from dsa_verify.model.backend_config import BackendConfig

    right, places, held = decoder.attend, count(), {}

    def attend(
        layer: Layer, path: LayerPath, config: BackendConfig, inputs: Inputs, caches: Caches, metadata: Metadata,
        selection: Selection | None,
    ) -> Output:  # fmt: skip
        if layer.kind == "shared" and selection is not None:
            place, pages = next(places), selection.pages  # one place for every layer of every compiled step

            def renew(now: jax.Array) -> np.ndarray:
                before, held[place] = held.get(place, now), np.array(now)
                return np.array(before)

            shape = jax.ShapeDtypeStruct(pages.shape, pages.dtype)
            selection = selection._replace(pages=io_callback(renew, shape, pages, ordered=True))
        return right(layer, path, config, inputs, caches, metadata, selection)

    patch.setattr(decoder, "attend", attend)
    anew = jax.jit(lambda *given: decoder.forward(*given), static_argnums=0, donate_argnums=3)
    patch.setattr(runner, "_compiled", anew)


def prefix_hit_restores_no_index_keys(patch: Patcher) -> None:
    """A prefix hit brings back latents but no index keys: whoever starts behind the end of another's rows."""
    import jax.numpy as jnp

    from dsa_verify.model.runner import ModelRunner

    right = ModelRunner.run

    def run(runner: ModelRunner, step: Step) -> np.ndarray:
        end = vars(runner).setdefault("_end", {})
        for seq in np.flatnonzero(step.kv_lens):
            table, history = step.page_table[seq], int(step.kv_lens[seq] - step.q_lens[seq])
            if history and end.get(int(table[0])) != history:
                gone = jnp.asarray(table[: history // step.page_size])
                runner.pools = tuple(
                    pool if pool.index_cache is None else pool._replace(index_cache=pool.index_cache.at[gone].set(0))
                    for pool in runner.pools
                )
            end[int(table[0])] = int(step.kv_lens[seq])
        return right(runner, step)

    patch.setattr(ModelRunner, "run", run)


def _with_changed(patch: Patcher, change: Callable[[Step, Step], dict[str, np.ndarray]]) -> None:
    """Steps reach the model with what `change` makes of them, given the step before of the same shape."""
    from dsa_verify.model.runner import ModelRunner

    right = ModelRunner.run

    def run(runner: ModelRunner, step: Step) -> np.ndarray:
        held = vars(runner).setdefault("_held", {})
        before = held.get(len(step.tokens), step)
        held[len(step.tokens)] = step
        broken = object.__new__(type(step))  # as it reaches the device: nobody checks it any more
        vars(broken).update({**vars(step), **change(step, before)})
        return right(runner, broken)

    patch.setattr(ModelRunner, "run", run)


def page_table_of_the_step_before(patch: Patcher) -> None:
    """The page table that the host has already overwritten for another step."""
    _with_changed(patch, lambda step, before: {"page_table": before.page_table})


def lengths_of_the_step_before(patch: Patcher) -> None:
    """Lengths that were not copied anew."""
    _with_changed(patch, lambda step, before: {"kv_lens": before.kv_lens})


def positions_not_renewed(patch: Patcher) -> None:
    """Positions that were not copied anew."""
    _with_changed(patch, lambda step, before: {"positions": before.positions})


def padding_is_written_to_the_last_slot(patch: Patcher) -> None:
    """A slot of -1 is an index like any other: with a pool of 11 pages of 16, slot 175."""
    last = 11 * 16 - 1
    _with_changed(patch, lambda step, _: {"out_cache_loc": np.where(step.out_cache_loc < 0, last, step.out_cache_loc)})


TABLE: tuple[SystemMutant, ...] = (
    SystemMutant(
        "selection-of-the-first-full-layer", "19", "decoder",
        SourceEdit(_DECODER, "selection = output.selection", "selection = selection or output.selection"),
        ("exact-tokens",), "answers",
    ),
    SystemMutant(
        "selection-of-the-step-before", "19", "decoder",
        MethodReplacement(selection_of_the_step_before), ("sparse-prefill",), "answers",
    ),
    SystemMutant(
        "shared-layer-chooses-for-itself", "18", "backend",
        SourceEdit(
            _BACKEND, '    if path.selection != "shared":\n        selection = None\n',
            '    if path.selection == "shared":\n'
            "        selection = Selection(0 * selection.pages + jax.numpy.arange(selection.pages.shape[1]))\n",
        ),
        ("sparse-prefill",), "answers",
    ),
    SystemMutant(
        "shared-layer-runs-without-a-selection", "19", "backend",
        SourceEdit(_BACKEND, "    if not own and not selected:\n", "    if False:\n"), ("shared-first",), "refusal",
    ),
    SystemMutant(
        "dense-prefill-has-no-index-keys", "20", "backend",
        SourceEdit(_BACKEND, 'LayerPath("dense_mla", "keys" if own else "none")', 'LayerPath("dense_mla", "none")'),
        ("dense-prefill",), "paths",
    ),
    SystemMutant(
        "index-keys-skipped-where-nothing-is-chosen", "20", "backend",
        SourceEdit(_BACKEND, 'in ("keys", "pages", "tokens"):', 'in ("pages", "tokens"):'),
        ("dense-prefill",), "cache writes",
    ),
    SystemMutant(
        "index-keys-skipped-in-decodes", "20", "backend",
        SourceEdit(
            _BACKEND, "        index_cache = write(",
            '        index_cache = index_cache if path.attention == "sparse_mla_decode" else write(',
        ),
        ("sparse-prefill",), "cache writes",
    ),
    SystemMutant(
        "index-keys-skipped-within-the-budget", "38", "backend",
        SourceEdit(
            _BACKEND, "index_cache, metadata.out_cache_loc)",
            "index_cache, jax.numpy.where(metadata.positions < layer.index_topk, -1, metadata.out_cache_loc))",
        ),
        ("dense-prefill",), "cache writes",
    ),
    SystemMutant(
        "mixed-step-taken-for-a-decode", "38", "backend",
        SourceEdit(_BACKEND, '    if mode == "decode":\n', '    if mode != "extend":\n'), ("sparse-prefill",), "engine",
    ),
    SystemMutant(
        "decode-taken-for-a-prefill", "39", "backend",
        SourceEdit(_BACKEND, '    if mode == "decode":\n', "    if False:\n"), ("sparse-prefill",), "paths",
    ),
    SystemMutant(
        "sparse-prefill-silently-dense", "39", "backend",
        SourceEdit(_BACKEND, "not (config.prefill_sparse or exact)", "not exact"), ("sparse-prefill",), "paths",
    ),
    SystemMutant(
        "sparse-attention-silently-dense", "39", "backend",
        SourceEdit(_BACKEND, "    run = _function(config.kernels, path.attention)\n",
              '    path = LayerPath("dense_mla", "none")\n    run = _function(config.kernels, path.attention)\n'),
        ("sparse-prefill",), "answers",
    ),
    SystemMutant(
        "page-budget-ignored", "39", "backend",
        SourceEdit(_BACKEND, "by_pages = config.page_topk > 0", "by_pages = False"), ("dense-prefill-budget",), "paths",
    ),
    SystemMutant(
        "page-budget-counted-in-tokens", "50", "backend",
        SourceEdit(_BACKEND, "min(config.page_topk, width) * page_size", "min(config.page_topk, width)"),
        ("dense-prefill-budget",), "answers",
    ),
    SystemMutant(
        "packed-table-read-at-a-fixed-stride", "25", "backend",
        SourceEdit(_BACKEND, "fixed_stride(metadata.page_table, metadata.cu_kv_lens, caches.cache_kv.shape[1])",
              "metadata.page_table.reshape(metadata.kv_lens.shape[0], -1)"),
        ("packed-table",), "packed table",
    ),
    SystemMutant(
        "index-cache-of-the-first-group", "55", "decoder",
        SourceEdit(_DECODER, "inputs, pools[number], step.metadata",
              "inputs, pools[number]._replace(index_cache=pools[number].index_cache if layer.kind == 'shared' else "
              "pools[0].index_cache), step.metadata"),
        ("sparse-prefill",), "answers",
    ),
    SystemMutant(
        "indexer-rotates-half-split", "02", "decoder",
        SourceEdit(_DECODER, "positions, config.indexer)",
              'positions, IndexerConvention("half_split", config.qk_rope_head_dim, frequencies=config.rotary))'),
        ("exact-tokens",), "answers",
    ),
    SystemMutant(
        "indexer-rotates-interleaved", "01", "decoder",
        SourceEdit(_DECODER, "positions, config.indexer)",
              'positions, IndexerConvention("interleaved", config.qk_rope_head_dim, frequencies=config.rotary))'),
        ("exact-tokens-deepseek",), "answers",
    ),
    SystemMutant(
        "rotary-part-of-the-keys-is-a-query's", "rotary", "decoder",
        SourceEdit(_DECODER, "for part in (pe, latent[:, None, rank:]))", "for part in (pe, pe[:, :1]))"),
        ("exact-tokens",), "answers",
    ),
    SystemMutant(
        "softmax-scale-of-the-latent-width", "26", "decoder",
        SourceEdit(_DECODER, "Layer(kind, config.index_topk, config.sm_scale)",
              "Layer(kind, config.index_topk, (config.kv_lora_rank + config.qk_rope_head_dim) ** -0.5)"),
        ("exact-tokens",), "answers",
    ),
    SystemMutant(
        "logits-after-the-token-before-the-last", "metadata", "decoder",
        SourceEdit(_DECODER, "hidden[step.last]", "hidden[jnp.maximum(step.last - 1, 0)]"),
        ("exact-tokens",), "answers",
    ),
    SystemMutant(
        "prefix-hit-restores-no-index-keys", "45", "runner", MethodReplacement(prefix_hit_restores_no_index_keys),
        ("exact-tokens",), "answers",
    ),
    SystemMutant(
        "page-table-of-the-step-before", "57", "runner", MethodReplacement(page_table_of_the_step_before),
        ("exact-tokens",), "engine",
    ),
    SystemMutant(
        "lengths-of-the-step-before", "metadata", "runner", MethodReplacement(lengths_of_the_step_before),
        ("dense-prefill",), "answers",
    ),
    SystemMutant(
        "positions-not-renewed", "metadata", "runner", MethodReplacement(positions_not_renewed),
        ("exact-tokens",), "answers",
    ),
    SystemMutant(
        "padding-is-written-to-the-last-slot", "41", "runner", MethodReplacement(padding_is_written_to_the_last_slot),
        ("exact-tokens",), "answers",
    ),
    *ENGINE_MUTANTS,
)  # fmt: skip
