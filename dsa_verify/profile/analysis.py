"""Analysis of a trace: for each layer and a window of queries, overlap of neighbours, structure, pages and bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.profile import blocks, structure, traffic
from dsa_verify.profile.trace import Selections, Source, Trace
from dsa_verify.shapes import SHAPES, ModelShape

BLOCK_SIZES = (16, 32, 64, 128, 256)
PAGE_SIZES = (16, 64, 128)
DEFAULT_SHAPE = "glm-5.2"
"""Cache rows of traces whose model is none of `shapes.py`; DeepSeek-V3.2's are as wide."""


@dataclass(frozen=True)
class AnalysisPlan:
    """What to measure. queries: length of the window, at the end of the trace. page_size: that of the bytes moved."""

    block_sizes: tuple[int, ...] = BLOCK_SIZES
    queries: int = 2048
    page_size: int = 64

    @property
    def page_sizes(self) -> tuple[int, ...]:
        return tuple(sorted({*PAGE_SIZES, self.page_size}))


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """One layer: its window, what each query selects, and what blocks of queries do."""

    layer: int
    window: Selections
    structure: structure.Structure
    blocks: tuple[blocks.Blocks, ...]
    pages: tuple[traffic.Pages, ...]
    crossings: tuple[traffic.Crossing, ...]

    @property
    def mean_selected(self) -> float:
        """Positions that a query selected."""
        return float((self.window.topk >= 0).sum(axis=1).mean())

    def rows(self, page_size: int) -> Iterator[dict[str, object]]:
        """One row a block size; pages are of `page_size`."""
        fetched = next(pages.fetched for pages in self.pages if pages.page_size == page_size)
        for block in self.blocks:
            yield {
                "layer": self.layer,
                "block_size": block.block_size,
                "blocks": len(block.first),
                "mean_intersection": float(block.intersection.mean()),
                "mean_union": float(block.union.mean()),
                "sinks": float(block.sinks.mean()),
                "strides": [stride.to_json() for stride in self.structure.strides],
                "local_window": self.structure.local_window,
                "pages_per_query": float(fetched.mean()),
                "pages_per_block": float(block.pages[page_size].mean()),
            }

    def pattern(self) -> dict[str, object]:
        """What the queries of the window select, whatever their blocks."""
        found, positions = self.structure, self.window.positions
        return {
            "layer": self.layer,
            "first_position": int(positions[0]),
            "last_position": int(positions[-1]),
            "mean_selected": self.mean_selected,
            "local_window": found.local_window,
            "local_share": found.local_share,
            "sinks": len(found.sinks),
            "sink_ranges": ranges(found.sinks),
            "sink_share": found.sink_share,
            "strides": [stride.to_json() for stride in found.strides],
            "median_distance": found.median_distance,
        }

    def page_rows(self) -> Iterator[dict[str, object]]:
        """One row a page size and block size. kept: see `traffic.Pages`."""
        for pages in self.pages:
            for block in self.blocks:
                yield {
                    "layer": self.layer,
                    "page_size": pages.page_size,
                    "block_size": block.block_size,
                    "pages_per_query": float(pages.fetched.mean()),
                    "pages_per_block": float(block.pages[pages.page_size].mean()),
                    "mean_kept": float(pages.kept.mean()),
                    "min_kept": float(pages.kept.min()),
                }


@dataclass(frozen=True, eq=False)
class Profile:
    """What was measured. left_out: block sizes that do not fit into the window."""

    source: Source
    plan: AnalysisPlan
    shape: str
    layers: tuple[LayerProfile, ...]
    left_out: tuple[int, ...]

    def rows(self) -> list[dict[str, object]]:
        """One row a layer and block size."""
        return [row for layer in self.layers for row in layer.rows(self.plan.page_size)]

    def page_rows(self) -> list[dict[str, object]]:
        """One row a layer, page size and block size."""
        return [row for layer in self.layers for row in layer.page_rows()]

    def to_json(self) -> dict[str, object]:
        """Plain JSON types, no NaN."""
        return {
            "source": vars(self.source),
            "shape": self.shape,
            "queries": len(self.layers[0].window.positions),
            "page_size": self.plan.page_size,
            "left_out_block_sizes": list(self.left_out),
            "layers": self.rows(),
            "patterns": [layer.pattern() for layer in self.layers],
            "pages": self.page_rows(),
            "bytes": [{"layer": layer.layer, **c.to_json()} for layer in self.layers for c in layer.crossings],
        }


def analyse(trace: Trace, plan: AnalysisPlan, tell: Callable[[str], None] = lambda _: None) -> Profile:
    """Measure every layer of a trace; `tell` hears what is being measured.

    Raises `ConfigError` when the window cannot be measured as planned.
    """
    shape = SHAPES[name if (name := trace.source.model.lower()) in SHAPES else DEFAULT_SHAPE]
    windows = {layer: _window(layer, selections, plan) for layer, selections in trace.layers.items()}
    shortest = min(len(window.positions) for window in windows.values())
    sizes = tuple(size for size in sorted(set(plan.block_sizes)) if size <= shortest)
    if not sizes:
        raise ConfigError(
            f"no block size fits: the window has {shortest} queries and the smallest block {min(plan.block_sizes)}; "
            "give smaller --block-sizes or a trace of more queries"
        )
    layers = []
    for layer, window in sorted(windows.items()):
        tell(f"layer {layer}, {len(layers)} of {len(windows)} done")
        layers.append(_layer(layer, window, sizes, plan, (trace.source.index_topk, shape)))
    return Profile(trace.source, plan, shape.name, tuple(layers), tuple(sorted(set(plan.block_sizes) - set(sizes))))


def _window(layer: int, selections: Selections, plan: AnalysisPlan) -> Selections:
    window = selections.window(plan.queries)
    gap = np.flatnonzero(np.diff(window.positions) != 1)
    if len(gap):
        before, after = window.positions[gap[-1]], window.positions[gap[-1] + 1]
        raise ConfigError(
            f"layer {layer}: blocks are of neighbouring queries, but position {before} is followed by {after}; give "
            f"--queries {len(window.positions) - int(gap[-1]) - 1} at most, or record every query of the window"
        )
    return window


def _layer(
    layer: int, window: Selections, block_sizes: tuple[int, ...], plan: AnalysisPlan, model: tuple[int, ModelShape]
) -> LayerProfile:
    index_topk, shape = model
    found = structure.structure(window)
    measured = tuple(blocks.measure(window, size, plan.page_sizes, found.local_window) for size in block_sizes)
    pages = tuple(traffic.pages(window, size, index_topk) for size in plan.page_sizes)
    fetched = {one.page_size: one.fetched for one in pages}[plan.page_size]
    crossings = tuple(traffic.crossing(shape, plan.page_size, fetched, block) for block in measured)
    return LayerProfile(layer, window, found, measured, pages, crossings)


def ranges(ascending: np.ndarray) -> list[list[int]]:
    """Ascending positions as [first, last] of each run."""
    if not len(ascending):
        return []
    runs = np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1)
    return [[int(run[0]), int(run[-1])] for run in runs]
