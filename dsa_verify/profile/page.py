"""A profile on disk: JSON, CSV tables, and one HTML page that needs no other file."""

import base64
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from dsa_verify.profile.analysis import Profile
from dsa_verify.profile.plots import Picture

_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
h1 { font-size: 1.5rem } figure { margin: 2.5rem 0 } img { width: 100%; height: auto } figcaption { color: #444 }
table { border-collapse: collapse } th, td { text-align: right; padding: .2rem .8rem; border-bottom: 1px solid #ddd }
.notice { border-left: 4px solid #d55e00; padding-left: .8rem }
@media (prefers-color-scheme: dark) {
body { background: #16181c; color: #e8e8e8 } figcaption { color: #bbb } img { background: #fff } }
</style>
<h1>$title</h1>
$notice<p>$source</p>
$table
$figures
</html>
""")

_COLUMNS = {
    "layer": "layer",
    "block_size": "queries in a block",
    "mean_intersection": "intersection",
    "mean_union": "union",
    "sinks": "sinks",
    "local_window": "local window",
    "pages_per_query": "pages a query",
    "pages_per_block": "pages a block",
}
"""Column of `layers` -> its heading on the page."""


def write(profile: Profile, document: Mapping[str, object], pictures: Sequence[Picture], folder: Path) -> list[Path]:
    """Write everything but the pictures, which are there already; returns the paths."""
    tables = {"layers": profile.rows(), "pages": profile.page_rows(), "blocks": list(_blocks(profile))}
    paths = [folder / "profile.json", *(folder / f"{name}.csv" for name in tables), folder / "index.html"]
    paths[0].write_text(json.dumps(document, allow_nan=False, indent=1) + "\n", "utf-8")
    for path, rows in zip(paths[1:-1], tables.values(), strict=True):
        _csv(path, rows)
    paths[-1].write_text(_html(profile, tables["layers"], pictures), "utf-8")
    return paths


def _blocks(profile: Profile) -> Iterable[dict[str, object]]:
    """One row a block: the numbers behind the means."""
    for layer in profile.layers:
        for block in layer.blocks:
            for at, first in enumerate(block.first):
                yield {
                    "layer": layer.layer,
                    "block_size": block.block_size,
                    "first_position": int(first),
                    "intersection": int(block.intersection[at]),
                    "union": int(block.union[at]),
                    "sinks": int(block.sinks[at]),
                    **{f"pages_of_{size}": int(pages[at]) for size, pages in block.pages.items()},
                }


def _csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """A table; what is a list in a row (strides) becomes JSON text in its cell."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in row.items()})


def _html(profile: Profile, rows: Sequence[Mapping[str, object]], pictures: Sequence[Picture]) -> str:
    source = profile.source
    notice = '<p class="notice">These selections are synthetic: made by construction, not by a model.</p>\n'
    return _PAGE.substitute(
        title=f"What the indexer of {escape(source.model)} selects",
        notice=notice if source.synthetic else "",
        source=escape(
            f"{source.text}. {source.tokens:,} tokens; index_topk {source.index_topk:,}, selected by "
            f"{source.granularity}; the window is the last {len(profile.layers[0].window.positions):,} queries; "
            f"pages of {profile.plan.page_size} tokens."
        ),
        table=_table(rows),
        figures="\n".join(map(_figure, pictures)),
    )


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    heads = "".join(f"<th>{heading}" for heading in _COLUMNS.values())
    body = "\n".join("<tr>" + "".join(f"<td>{_number(row[name])}" for name in _COLUMNS) for row in rows)
    return f"<table>\n<thead><tr>{heads}\n<tbody>\n{body}\n</table>"


def _number(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    return (
        f'<figure>\n<img alt="{escape(picture.finding)}" src="data:image/png;base64,{data}">\n'
        f"<figcaption>{escape(picture.explanation)}</figcaption>\n</figure>"
    )
