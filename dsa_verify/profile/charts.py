"""The charts of a profile but its heatmap: each draws on a figure and returns its finding and how to read it."""

from typing import Any

import numpy as np

from dsa_verify.profile.analysis import LayerProfile, Profile
from dsa_verify.profile.blocks import Blocks

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#666666"
"""Three of Okabe and Ito's colours, which colour-blind readers tell apart; markers and dashes differ too."""

_MARKS = (
    {"color": BLUE, "marker": "o", "linestyle": "-"},
    {"color": ORANGE, "marker": "s", "linestyle": "--"},
    {"color": GREEN, "marker": "^", "linestyle": "-."},
    {"color": GREY, "marker": "D", "linestyle": ":"},
)

_PEAKS = 400
"""Bars across one of two panels, so that a bar is about a pixel wide and none is averaged away."""


def overlap(figure: Any, layer: LayerProfile) -> tuple[str, str]:
    """Intersection and union by block size."""
    axes = figure.subplots()
    sizes = [block.block_size for block in layer.blocks]
    selected = layer.mean_selected
    axes.axhline(selected, color=GREY, linestyle=":", label="selected by one query")
    for name, mark, above in (("union", _MARKS[1], 6), ("intersection", _MARKS[0], -14)):
        values = [getattr(block, name).mean() for block in layer.blocks]
        axes.plot(sizes, values, label=name, **mark)
        for size, value in zip(sizes, values, strict=True):
            place = {"xytext": (0, above), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes.annotate(f"{value:,.0f}", (size, value), **place)
    _by_size(axes, sizes)
    axes.set_yscale("log")
    _plain(axes.yaxis)
    axes.margins(y=0.15)
    axes.set_ylabel("positions (mean over blocks)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    block = _typical(layer)
    common = block.intersection.mean()
    finding = (
        f"Layer {layer.layer}: {block.block_size} neighbouring queries share {common:,.0f} of {selected:,.0f} "
        f"positions ({common / max(1, selected):.0%})"
    )
    return finding, (
        "The intersection holds what every query of a block selected, the union what any did: the closer both are to "
        "one query's selection, the more a block gains from fetching its union once."
    )


def position(figure: Any, layer: LayerProfile) -> tuple[str, str]:
    """Intersection and union by where in the window a block is."""
    upper, lower = figure.subplots(2, sharex=True)
    block = _typical(layer)
    for axes, name, mark in ((upper, "union", _MARKS[1]), (lower, "intersection", _MARKS[0])):
        axes.plot(block.first, getattr(block, name), markersize=4, **mark)
        axes.set_ylim(0, 1.15 * getattr(block, name).max(initial=1))
        axes.set_ylabel(f"{name}\n(positions)")
        _plain(axes.yaxis)
    _plain(lower.xaxis)
    lower.set_xlabel("position of the block's first query (tokens)")
    finding = (
        f"Layer {layer.layer}: along the window, blocks of {block.block_size} share {_span(block.intersection)} "
        f"positions of a union of {_span(block.union)}"
    )
    return (
        finding,
        "A flat line means that overlap no longer depends on how long the context is; a slope, that it does.",
    )


def structure(figure: Any, layer: LayerProfile) -> tuple[str, str]:
    """How many queries select each position and each distance."""
    left, right = figure.subplots(1, 2, sharey=True)
    found = layer.structure
    step = _peaks(left, found.columns, len(found.columns))
    left.set_title(f"by position (highest of {step} a bar)")
    left.set_xlabel("position (tokens)")
    left.set_ylabel("queries that select it")
    longest = max((stride.period for stride in found.strides), default=64)
    near = min(len(found.rate), int(found.local_window + 8 * longest))
    step = _peaks(right, found.rate, near)
    right.axvspan(
        0, found.local_window, ymin=1 / 1.3, ymax=1.1 / 1.3, color=ORANGE, alpha=0.4, linewidth=0, label="local window"
    )
    for stride, mark in zip(found.strides, _MARKS[1:], strict=False):
        at = np.arange(stride.offset, near, stride.period)
        at = at[at >= found.local_window]
        label = f"every {stride.period:,.6g} tokens"
        right.plot(at, np.full(len(at), 1.05), mark["marker"], color=mark["color"], markersize=4, label=label)
    right.set_title(f"by distance, without sinks (highest of {step} a bar)")
    right.set_xlabel("distance back from the query (tokens)")
    right.legend(loc="upper right", ncols=2)
    for axes in (left, right):
        axes.set_ylim(0, 1.3)
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.yaxis.set_major_formatter("{x:.0%}")
        axes.locator_params(axis="x", nbins=5)
        _plain(axes.xaxis)
    strides = " and ".join(f"every {stride.period:,.6g} ({stride.share:.0%})" for stride in found.strides)
    finding = (
        f"Layer {layer.layer}: {found.local_share:.0%} of selections are local (last {found.local_window:,} tokens), "
        f"{found.sink_share:.0%} are {len(found.sinks):,} sinks, " + (f"strides: {strides}" if strides else "no stride")
    )
    return finding, (
        "A column that nearly every query selects is a sink; a distance that nearly every query selects is part of the "
        "local window or, at regular intervals beyond it, of a stride."
    )


def _peaks(axes: Any, values: np.ndarray, count: int) -> int:
    """The first `count` values as bars, each the highest of as many values as are returned."""
    step = -(-count // _PEAKS)
    peaks = np.maximum.reduceat(values[:count], np.arange(0, count, step))
    axes.fill_between(np.arange(len(peaks) + 1) * step, np.append(peaks, 0), step="post", color=BLUE, linewidth=0)
    return step


def pages(figure: Any, layer: LayerProfile) -> tuple[str, str]:
    """Pages fetched by a query alone and as one of a block, and what whole pages would keep."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    sizes = [block.block_size for block in layer.blocks]
    for at, (pages, mark) in enumerate(zip(layer.pages, _MARKS, strict=False)):
        shared = [block.pages[pages.page_size].mean() / block.block_size for block in layer.blocks]
        alone = pages.fetched.mean()
        left.plot(sizes, shared, label=f"{pages.page_size} tokens a page", **mark)
        left.axhline(alone, color=mark["color"], linestyle=mark["linestyle"], linewidth=0.8)
        place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "right", "fontsize": 8}
        left.annotate(f"alone: {alone:,.0f}", (sizes[-1 - at % len(sizes)], alone), **place)
    _by_size(left, sizes)
    left.set_yscale("log")
    _plain(left.yaxis)
    left.margins(y=0.15)
    left.set_ylabel("pages fetched a query")
    left.legend(loc="lower left")
    names = [str(pages.page_size) for pages in layer.pages]
    kept = [pages.kept.mean() for pages in layer.pages]
    right.bar_label(right.bar(names, kept, color=BLUE, width=0.6), fmt="{:.0%}", padding=2)
    right.set_ylim(0, 1.1)
    right.yaxis.set_major_formatter("{x:.0%}")
    right.grid(axis="x", visible=False)
    right.set_xlabel("page size (tokens)")
    right.set_ylabel("share of selected positions")
    right.set_title("kept by whole pages")
    block, pages = layer.blocks[-1], layer.pages[len(layer.pages) // 2]
    shared = block.pages[pages.page_size].mean()
    finding = (
        f"Layer {layer.layer}: {block.block_size} queries fetch {shared:,.0f} pages of {pages.page_size} together, "
        f"{block.block_size * pages.fetched.mean():,.0f} alone"
    )
    return finding, (
        "Left: pages fetched a query when a block shares its union, beside what a query fetches alone; right: how much "
        "of a query's selection at most survives when its budget is spent on whole pages."
    )


def bytes_moved(figure: Any, layer: LayerProfile) -> tuple[str, str]:
    """Bytes read for a block of queries, dense and sparse, by length of the context."""
    axes = figure.subplots()
    one = layer.crossings[-1]
    longest = max(int(layer.window.positions[-1]) + 1, 2 * one.crossings["qblock_full"], 131072)
    context = np.geomspace(1024, longest, 200)
    million = 1e6
    for label, values, mark in (
        ("dense", one.dense(context), {"color": "#b0b0b0", "linewidth": 4}),
        ("sparse, each query alone", one.per_query(context), _MARKS[1]),
        ("sparse, union of the block", one.qblock(context), _MARKS[0]),
        ("the same, in a layer that scores", one.qblock(context) + one.scoring(context), _MARKS[2]),
    ):
        axes.plot(context, values / million, label=label, **{**mark, "marker": ""})
    block = layer.blocks[-1]
    measured = block.pages[one.page_size] * one.page_size * one.latent_bytes / million
    axes.plot(block.first + block.block_size, measured, "o", color=BLUE, markersize=4, label="union, as measured")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _plain(axes.xaxis)
    _plain(axes.yaxis)
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("read for one block of queries (MB)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    at = one.crossings
    if one.saturated:
        found = (
            f"blocks of {one.block_size} read {one.coverage:.0%} of all pages, hardly less than dense at this length"
        )
    else:
        found = (
            f"blocks of {one.block_size} read less than dense beyond {at['qblock_shared']:,} tokens, "
            f"{at['qblock_full']:,} if they score; queries alone beyond {at['per_query_shared']:,}"
        )
    return f"Layer {layer.layer}: {found}", (
        "Dense attention reads the whole context once a block, sparse attention the selected pages, whose number is "
        "taken as measured at every length; where the lines cross, sparse begins to move fewer bytes."
    )


def layers(figure: Any, profile: Profile) -> tuple[str, str]:
    """What explains the selections of each layer."""
    axes = figure.subplots()
    names = [str(layer.layer) for layer in profile.layers]
    found = [layer.structure for layer in profile.layers]
    bottom = np.zeros(len(names))
    for label, shares, color, hatch in (
        ("local window", [one.local_share for one in found], BLUE, ""),
        ("sinks", [one.sink_share for one in found], ORANGE, "//"),
        ("strides", [sum(stride.share for stride in one.strides) for one in found], GREEN, ".."),
    ):
        axes.bar(names, shares, bottom=bottom, label=label, color=color, hatch=hatch, edgecolor="white", width=0.8)
        bottom = bottom + shares
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("layer")
    axes.set_ylabel("share of selections")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    finding = f"Window, sinks and strides explain {_span(bottom, '.0%')} of the selections of a layer"
    return finding, "Each bar splits one layer's selections by the pattern that explains them; the rest is scattered."


def _typical(layer: LayerProfile) -> Blocks:
    """The blocks spoken of in titles: the largest up to 128 queries."""
    return max(layer.blocks, key=lambda block: (block.block_size <= 128, block.block_size))


def _span(values: np.ndarray, form: str = ",") -> str:
    """The lowest and the highest, or the one there is."""
    low, high = (format(value, form) for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _by_size(axes: Any, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("queries in a block")


def _plain(axis: Any) -> None:
    """Numbers in full, with thousands separated."""
    axis.set_major_formatter("{x:,.6g}")
