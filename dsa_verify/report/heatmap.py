"""A heatmap as inline SVG, two paths a panel: told apart by where in its row a bar stands, not by colour."""

from collections.abc import Iterator
from dataclasses import dataclass

from dsa_verify.evidence import Heatmap

ROW, BAR = 16, 12
"""Height of a row and of the largest bar in it, in pixels: a label of 11 pixels fits."""
LEFT = 62
"""Where cells begin, behind labels as long as `99:123456`."""
PLOT = 240
"""Width that few columns are stretched to; with labels it fits a phone of 360 pixels."""

Layer = tuple[str, float, float]
"""Characters of cells, and the bar that they get: where in the row it begins from the top, and how high it is."""

SELECTION: dict[str, tuple[Layer, ...]] = {
    "expected": (("=-mpxb", 0, 1),),
    "got": (("=m+pxb", 0, 1),),
    "difference": (("-mxb", 0, 0.5), ("+pxb", 0.5, 0.5), ("=", 0.42, 0.16)),
}
SHARE: dict[str, tuple[Layer, ...]] = {
    "share of the error budget": (("1", 0.75, 0.25), ("2", 0.5, 0.5), ("3", 0.25, 0.75), ("!", 0, 1)),
}
"""Panels by title; the characters are those of `dsa_verify.checks.heatmap`."""

_HOW = {
    "selection": "Difference: a bar in the upper half is expected and missing, one in the lower half kept and not "
    "expected; a thin line in the middle is kept as expected.",
    "share": "A bar of a quarter, half, three quarters of the row is above 1, 10, 100 times the budget; one "
    "of all of it is infinite or not a number.",
}


@dataclass(frozen=True)
class Panel:
    """One picture. base, bars: SVG path data, of the lines under each row and of what stands on them; labels: (x, y,
    text). alt: what the picture is of."""

    title: str
    alt: str
    width: float
    height: float
    base: str
    bars: str
    labels: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Drawing:
    """A heatmap for the page. lines: what each row shows, in words; how: how to read the panels."""

    caption: str
    panels: tuple[Panel, ...]
    lines: tuple[str, ...]
    how: str


def draw(heatmap: Heatmap) -> Drawing:
    """Expected, got and difference of a selection; one panel of shares."""
    layers = SELECTION if heatmap.kind == "selection" else SHARE
    lines = tuple(f"{_place(row.request, row.position)}: {row.note}" for row in heatmap.rows)
    shown = f", {len(lines)} of them shown" if len(lines) < heatmap.faulty else ""
    a_cell = f", {heatmap.width} a cell" if heatmap.width > 1 else ""
    return Drawing(
        caption=f"{heatmap.faulty} faulty quer{'ies' if heatmap.faulty != 1 else 'y'}{shown}; {lines[0]}",
        panels=tuple(_panel(heatmap, title, layers[title]) for title in layers),
        lines=lines,
        how=f"Rows are queries, request:position; columns are {heatmap.column}s{a_cell}. {_HOW[heatmap.kind]}",
    )


def _place(request: int, position: int) -> str:
    return "padding token" if request < 0 else f"query at position {position} of request {request}"


def _panel(heatmap: Heatmap, title: str, layers: tuple[Layer, ...]) -> Panel:
    columns = max(len(row.cells) for row in heatmap.rows)
    size, bottom = max(2.0, min(16.0, PLOT / columns)), ROW * len(heatmap.rows)
    last = heatmap.width * columns - 1
    labels = [
        (0, ROW * at + BAR, "padding" if row.request < 0 else f"{row.request}:{row.position}")
        for at, row in enumerate(heatmap.rows)
    ]
    labels += [(LEFT, bottom + BAR + 2, f"{heatmap.column}s 0 to {last}")]
    candidates = "".join({cell for row in heatmap.rows for cell in row.cells} - {" "})
    return Panel(
        title=title,
        alt=f"Heatmap, {title}: {len(heatmap.rows)} queries by {heatmap.column}s 0 to {last}; each row in words below",
        width=round(max(LEFT + size * columns, LEFT + PLOT / 2), 1),
        height=bottom + ROW + 2,
        base="".join(_bars(heatmap, size, (candidates, 1 + 1 / BAR, 0.5 / BAR))),
        bars="".join(bar for layer in layers for bar in _bars(heatmap, size, layer)),
        labels=tuple(labels),
    )


def _bars(heatmap: Heatmap, size: float, layer: Layer) -> Iterator[str]:
    """SVG path data of one layer; neighbours are one rectangle."""
    cells, top, high = layer
    for at, row in enumerate(heatmap.rows):
        for start, stop in _runs(row.cells, cells):
            x, y, width = LEFT + size * start, ROW * at + 1 + BAR * top, size * (stop - start)
            yield f"M{x:.1f} {y:.1f}h{width:.1f}v{BAR * high:.1f}h-{width:.1f}z"


def _runs(row: str, cells: str) -> Iterator[tuple[int, int]]:
    """Where runs of any of these cells begin and end."""
    start = None
    for at, cell in enumerate([*row, ""]):
        inside = cell != "" and cell in cells
        if inside and start is None:
            start = at
        if not inside and start is not None:
            yield start, at
            start = None
