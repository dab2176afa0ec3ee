"""Recorder: collects the selections of a running engine into a Trace, by a hook on what a function returns.

    with recording(Path("trace.npz"), source) as recorder:
        with recorder.hooked(owner, "function", selection):
            ...  # serve one request

replaces `owner.function` by one that hands its result on unchanged, and gives `selection(result, *args, **kwargs)` a
look at it, which answers (layer, positions, topk) or None where nothing was selected. It works under `jit` and inside a
`scan` over layers. A function that was compiled before it was hooked records nothing: hook first, then warm up.

SGLang-JAX: one object holds a layer's attention, `DSASparseAttentionBackend` in
`sgl_jax.srt.layers.attention.dsa_sparse_backend`. Its call takes the layer and the batch, and returns the output with a
`DSAFusedCache`, whose `topk` holds the tokens that a full layer selected in a decode step and whose `topk_pages` holds
the pages that it selected in a sparse prefill (`DSA_PREFILL_SPARSE=1`; a dense prefill selects nothing). So

    import sgl_jax.srt.layers.attention.dsa_sparse_backend as theirs
    source = Source("a novel", "glm-5.2", page_size=64, index_topk=2048, tokens=32768, granularity="page")
    with recording(Path("trace.npz"), source) as recorder:
        with recorder.hooked(theirs.DSASparseAttentionBackend, "__call__", sglang_jax(source)):
            ...  # start the engine in this process, send one request, wait for its answer

records a prefill by page; granularity="token" records a decode by token. Shared layers select nothing of their own.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.profile.trace import FILL, Selections, Source, Trace, save

Selection = tuple[Any, Any, Any]
"""(layer, positions [queries], topk [queries, any number of columns]); a negative position marks a padding row."""


@contextmanager
def recording(path: Path, source: Source) -> Iterator["Recorder"]:
    """Yields a recorder, and writes what it collected to `path` unless the block raised."""
    recorder = Recorder(source)
    yield recorder
    save(recorder.trace(), path)


class Recorder:
    """Selections as they come, in any order; `trace` sorts them out."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._came: list[tuple[int, np.ndarray, np.ndarray]] = []

    def record(self, layer: Any, positions: Any, topk: Any) -> None:
        """Keep one selection: of NumPy or JAX arrays, inside a traced function or outside."""
        if all(isinstance(part, int | np.integer | np.ndarray) for part in (layer, positions, topk)):
            self._store(layer, positions, topk)
        else:
            import jax

            jax.debug.callback(self._store, layer, positions, topk)

    def hook(self, function: Callable[..., Any], selection: Callable[..., Selection | None]) -> Callable[..., Any]:
        """`function`, observed: what it returns is handed on as it is."""

        @functools.wraps(function)
        def observed(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            selected = selection(result, *args, **kwargs)
            if selected is not None:
                self.record(*selected)
            return result

        return observed

    @contextmanager
    def hooked(self, owner: Any, name: str, selection: Callable[..., Selection | None]) -> Iterator[None]:
        """Observe `owner.name`, a module's function or a class's method, within the block."""
        function = getattr(owner, name)
        setattr(owner, name, self.hook(function, selection))
        try:
            yield
        finally:
            setattr(owner, name, function)

    def trace(self) -> Trace:
        """What was collected so far. Raises `ConfigError` when that is nothing, or no sound trace."""
        if "jax" in sys.modules:
            sys.modules["jax"].effects_barrier()  # callbacks of dispatched calls may still be under way
        rows: dict[int, dict[int, np.ndarray]] = {}
        for layer, positions, topk in self._came:
            _merge(rows.setdefault(layer, {}), f"layer {layer}", positions, topk)
        if not any(rows.values()):
            raise ConfigError(
                "nothing was recorded: no hooked function returned a selection, or it was compiled before it was "
                "hooked; hook it before the first call, and send a prompt of more than index_topk tokens"
            )
        return Trace(self.source, {layer: self._selections(layer, rows[layer]) for layer in sorted(rows)})

    def _selections(self, layer: int, rows: Mapping[int, np.ndarray]) -> Selections:
        positions, columns = sorted(rows), self.source.columns
        topk = np.full((len(rows), columns), FILL, np.int32)
        for row, position in zip(topk, positions, strict=True):
            chosen = rows[position]
            if len(chosen) > columns:
                raise ConfigError(
                    f"layer {layer}, position {position}: {len(chosen)} positions were selected, and the source says "
                    f"at most {columns}; correct index_topk, page_size or granularity"
                )
            row[: len(chosen)] = chosen
        return Selections(np.array(positions, np.int32), topk)

    def _store(self, layer: Any, positions: Any, topk: Any) -> None:
        """Called back from compiled code, where an error would lose its words: nothing is judged here."""
        self._came.append((int(layer), np.array(positions), np.array(topk, np.int32)))


def _merge(rows: dict[int, np.ndarray], where: str, positions: np.ndarray, topk: np.ndarray) -> None:
    """Add one row a query. A row that comes twice must be the same: a replica, or the same prompt run again."""
    for position, chosen in zip(positions.tolist(), topk, strict=True):
        if position < 0:
            continue
        chosen = np.sort(chosen[chosen != FILL])
        if position in rows and not np.array_equal(rows[position], chosen):
            raise ConfigError(f"{where}, position {position} selected two different sets; record one request at a time")
        rows[position] = chosen


def tokens_of_pages(pages: Any, positions: Any, page_size: int) -> Any:
    """Causal positions of selected sequence-local pages (-1: none), -1 for the rest; NumPy or JAX arrays, jit-able."""
    inside = np.arange(page_size, dtype=np.int32)
    tokens = (pages[:, :, None] * page_size + inside).reshape(len(pages), -1)
    causal = (tokens >= 0) & (tokens <= positions[:, None])
    return tokens * causal + FILL * ~causal


def sglang_jax(source: Source) -> Callable[..., Selection | None]:
    """What one call of SGLang-JAX's DSA backend selected: pages of a prefill or tokens of a decode, as `source` says.

    The slot of a padding token is not positive (slot 0 is of the reserved page), while its position is 0.
    """

    def selection(result: Any, _backend: Any, _q: Any, _k: Any, _v: Any, layer: Any, batch: Any, *_, **__) -> Any:
        cache = result[1]
        positions = (batch.positions + 1) * (batch.out_cache_loc > 0) - 1
        if source.granularity == "token":
            # With DSA_PAGE_TOPK set, a decode selects pages, and `topk` is one column of -1.
            chosen = cache.topk if cache.topk is not None and cache.topk.shape[1] > 1 else None
        elif cache.topk is None and cache.topk_pages is not None:
            chosen = tokens_of_pages(cache.topk_pages, positions, source.page_size)
        else:
            chosen = None
        return None if chosen is None else (layer.layer_id, positions, chosen)

    return selection
