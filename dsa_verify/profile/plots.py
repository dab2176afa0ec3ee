"""Plots of a profile as PNG and SVG; each is titled with what it shows, and needs no colour to be read."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsa_verify.errors import ConfigError
from dsa_verify.profile import charts, heatmap
from dsa_verify.profile.analysis import Profile

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "dsa-verify",
}

_LETTERS = 11
"""Letters of a title that fit into an inch."""


@dataclass(frozen=True)
class Picture:
    """One plot on disk. finding: its title. explanation: one sentence on how to read it."""

    path: Path
    finding: str
    explanation: str


def draw(profile: Profile, folder: Path) -> list[Picture]:
    """Draw every plot of a profile into a folder: those of each layer, and one of all layers if there are several."""
    plots: dict[str, Callable[..., tuple[str, str]]] = {
        "heatmap": heatmap.draw,
        "overlap": charts.overlap,
        "position": charts.position,
        "structure": charts.structure,
        "pages": charts.pages,
        "bytes": charts.bytes_moved,
    }
    pictures = []
    with _figures() as figure:
        if len(profile.layers) > 1:
            canvas = figure(8, 3.2)
            pictures.append(_save(canvas, folder / "layers.png", profile, charts.layers(canvas, profile)))
        for layer in profile.layers:
            for name, plot in plots.items():
                canvas = figure(8, 3.6)
                path = folder / f"layer_{layer.layer:03}_{name}.png"
                pictures.append(_save(canvas, path, profile, plot(canvas, layer)))
    return pictures


@contextmanager
def _figures() -> Iterator[Callable[[float, float], Any]]:
    """Yields what makes a figure; matplotlib is an extra, and its settings are left as they were."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"plots need matplotlib ({error}); pip install 'dsa-verify[profile]', or --no-plots"
        ) from error
    with rc_context(_STYLE):
        yield lambda width, height: Figure(figsize=(width, height))


def _save(figure: Any, path: Path, profile: Profile, words: tuple[str, str]) -> Picture:
    """Title a plot and write both files; synthetic data is called so in the picture itself."""
    finding, explanation = words
    if profile.source.synthetic:
        finding = f"Synthetic selections. {finding}"
    title = textwrap.fill(finding, int(_LETTERS * figure.get_figwidth()))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.savefig(path, dpi=120)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return Picture(path, finding, explanation)
