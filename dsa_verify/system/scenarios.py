"""Scenarios of the system by name: each plays one workload, by seed, and says which checks reject and why.

`toy`: the engine over a toy model, its guards on; `toy-unguarded`: off. A wiring's name: the real decoder under it.
`shared-first` and `packed-table`: the backend by itself.
"""

from collections.abc import Callable, Mapping
from functools import partial
from unittest import mock

import numpy as np

from dsa_verify.batch.requests import page_count
from dsa_verify.engine import Step
from dsa_verify.engine.pool import PagePool
from dsa_verify.errors import ContractError, EngineError
from dsa_verify.system.judge import CHECKS as OF_DECODER
from dsa_verify.system.judge import judged
from dsa_verify.system.toy import judge, play_toy
from dsa_verify.system.wirings import FAST, WIRINGS
from dsa_verify.system.workloads import Wrong, decoder_workload, toy_workload

CHECKS = {
    **OF_DECODER,
    "guards": "a step, the pool or the invariants of the engine refuse",
    "refusal": "a shared layer runs before a full one has chosen",
    "packed table": "a packed page table gives other results than one of fixed stride",
}
"""What each check of the system rejects."""


def _toy(guarded: bool, seed: int) -> dict[str, str]:
    work = toy_workload(seed)
    try:
        judge(work, play_toy(work, checked=guarded))
    except EngineError as error:
        return {"guards" if guarded else "answers": str(error)}
    except Wrong as error:
        return {"answers": str(error)}
    return {}


def _unguarded(seed: int) -> dict[str, str]:
    free = mock.patch.object(PagePool, "_demand_used", return_value=None)
    with free, mock.patch.object(Step, "__post_init__", return_value=None):
        return _toy(False, seed)


def _wired(name: str, seed: int) -> dict[str, str]:
    return judged(WIRINGS[name], decoder_workload(seed)).rejected


def _shared_first(seed: int) -> dict[str, str]:
    """The seed picks the mode of the step."""
    from dsa_verify.model.backend import Layer, Mode, path_of

    modes: tuple[Mode, ...] = ("decode", "extend", "mixed")
    mode = modes[seed % 3]
    try:
        path = path_of(Layer("shared", 64, 0.1), mode, WIRINGS["sparse-prefill"].backend, selected=False)
    except ContractError:
        return {}
    return {"refusal": f"a shared layer without a selection ran {path} in a {mode} step, expected a ContractError"}


def _packed_table(seed: int) -> dict[str, str]:
    """One layer over requests of unequal length, its page table in both forms."""
    import jax.numpy as jnp

    from dsa_verify.model.backend import Caches, Inputs, Layer, Metadata, attend, path_of

    rng = np.random.default_rng(seed)
    size, width, q_lens, history = 16, 4, np.array([3, 5, 1, 7]), rng.integers(1, 56, 4)
    kv_lens = (q_lens + history).astype(np.int32)
    counts = [page_count(int(n), size) for n in kv_lens]
    pages = rng.permutation(np.arange(1, 1 + sum(counts))).astype(np.int32)
    starts = np.cumsum([0, *counts])
    table, flat = np.zeros((4, width), np.int32), np.zeros(4 * width, np.int32)
    flat[: len(pages)] = pages
    for row, start, count in zip(table, starts, counts, strict=False):
        row[:count] = pages[start : start + count]
    cu_q_lens, tokens = np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32), int(q_lens.sum())
    positions = np.concatenate([np.arange(kv - q, kv) for q, kv in zip(q_lens, kv_lens, strict=True)]).astype(np.int32)
    seq = np.repeat(np.arange(4), q_lens)
    slots = table[seq, positions // size] * size + positions % size
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    inputs = Inputs(*(draw(tokens, *more) for more in ((2, 8), (2, 4), (8,), (4,), (2, 8), (8,), (2,))))
    caches = Caches(draw(len(pages) + 1, size, 256), draw(len(pages) + 1, size, 8))
    lengths, places = (kv_lens, cu_q_lens), (positions, slots.astype(np.int32))
    layer, backend = Layer("full", 32, 0.3), WIRINGS["sparse-prefill"].backend
    forms = ((*lengths, table, *places), (*lengths, flat, *places, (starts * size).astype(np.int32)))
    given = [Metadata(*map(jnp.asarray, form)) for form in forms]
    path = path_of(layer, "mixed", backend, selected=False)
    outs = [np.asarray(attend(layer, path, backend, inputs, caches, metadata).out) for metadata in given]
    off = np.flatnonzero((outs[0] != outs[1]).any(axis=(1, 2)))
    if not len(off):
        return {}
    return {"packed table": f"{len(off)} of {tokens} tokens differ, first token {off[0]} of request {seq[off[0]]}"}


SCENARIOS: Mapping[str, Callable[[int], dict[str, str]]] = {
    "toy": partial(_toy, True),
    "toy-unguarded": _unguarded,
    "shared-first": _shared_first,
    "packed-table": _packed_table,
    **{name: partial(_wired, name) for name in FAST},
}
