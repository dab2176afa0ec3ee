"""The heatmap of selected positions: averaged where pixels are fewer than pairs, and one corner as it is."""

from typing import Any

import numpy as np

from dsa_verify.profile.analysis import LayerProfile
from dsa_verify.profile.trace import Selections

_PIXELS = (400, 440)
"""Rows and columns of the whole picture, at most: fewer than dots of the PNG, which would drop what does not fit."""

_CORNER, _CORNER_PIXELS = 128, 300
"""Queries of the enlarged corner, and its columns; its positions reach half as far again as the local window."""


def average(window: Selections, pixels: tuple[int, int] = _PIXELS) -> tuple[np.ndarray, int, int]:
    """Share of the causal pairs in each pixel that were selected, NaN where there are none; and a pixel's size.

    Averages, as picking rows and columns would make diagonals appear and vanish.
    """
    positions, topk = window.positions, window.topk
    reach = int(positions[-1]) + 1
    tall, wide = (-(-size // most) for size, most in zip((len(positions), reach), pixels, strict=True))
    columns = -(-reach // wide)
    row = np.arange(len(positions)) // tall
    place = row[:, None] * columns + topk // wide
    selected = np.bincount(place[topk >= 0], minlength=(row[-1] + 1) * columns).reshape(-1, columns)
    causal = np.clip(positions[:, None] + 1 - np.arange(columns) * wide, 0, wide)
    pairs = np.add.reduceat(causal, np.arange(0, len(positions), tall))
    return np.where(pairs > 0, selected / np.maximum(pairs, 1), np.nan), tall, wide


def _corner(window: Selections, local_window: int) -> tuple[np.ndarray, int, tuple[int, int, int, int]]:
    """Every query of a window by its nearest positions: the picture, positions a pixel, and its edges."""
    rows, end = len(window.positions), int(window.positions[-1]) + 1
    columns = min(end, max(_CORNER_PIXELS, rows + local_window * 3 // 2))
    image, _, wide = average(window, (rows, end * _CORNER_PIXELS // columns))
    first = image.shape[1] + -columns // wide  # rounds away from zero: no column is lost
    return image[:, first:], wide, (first * wide, image.shape[1] * wide, end, end - rows)


def draw(figure: Any, layer: LayerProfile) -> tuple[str, str]:
    """Draw the window on the left and its last corner on the right; returns the finding and how to read it."""
    from matplotlib.colors import PowerNorm

    figure.set_size_inches(9, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(4, 3))
    window = layer.window
    image, tall, wide = average(window)
    first, last = int(window.positions[0]), int(window.positions[-1])
    edges = (0, image.shape[1] * wide, first + image.shape[0] * tall, first)
    # Thin lines are averaged with what is beside them; the square root keeps them visible.
    shown = left.imshow(
        image, extent=edges, aspect="auto", cmap=_map("Blues"), norm=PowerNorm(0.5, 0, 1), interpolation="nearest"
    )
    bar = figure.colorbar(shown, ax=left, fraction=0.05, pad=0.02)
    bar.ax.yaxis.set_major_formatter("{x:.0%}")
    bar.set_label("selected (share of pairs, square-root scale)")
    left.set_title(f"a pixel is {tall} {_s('query', tall)} by {wide} {_s('position', wide)}")

    rows = min(_CORNER, len(window.positions))
    image, wide, edges = _corner(window.window(rows), layer.structure.local_window)
    right.imshow(
        image, extent=edges, aspect="auto", cmap=_map("Blues"), norm=PowerNorm(0.5, 0, 1), interpolation="nearest"
    )
    right.set_title(f"the last {rows} queries, each by {wide} {_s('position', wide)}")
    for axes in (left, right):
        axes.grid(visible=False)
        axes.set_xlabel("selected position (tokens)")
        axes.locator_params(axis="x", nbins=5)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,.0f}")
    left.set_ylabel("position of the query (tokens)")
    finding = (
        f"Layer {layer.layer}: of up to {last + 1:,} positions a query selects {layer.mean_selected:,.0f}, "
        f"half of them within {layer.structure.median_distance:,} tokens"
    )
    return finding, (
        "Vertical lines are sinks, diagonals are distances that keep being selected, and the dark edge is the local "
        "window; grey was not there to be selected yet."
    )


def _map(name: str) -> Any:
    from matplotlib import colormaps

    return colormaps[name].with_extremes(bad="#dddddd")


def _s(word: str, count: int) -> str:
    return word if count == 1 else {"query": "queries"}.get(word, f"{word}s")
