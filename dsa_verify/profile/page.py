"""A profile on disk: JSON, CSV tables, and one HTML page that needs no other file."""

import base64
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dsa_verify.profile.analysis import Profile
from dsa_verify.profile.plots import Picture
from dsa_verify.report import templates

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
    """Write everything but the pictures, which are there already; returns the paths.

    Numbers need no extra: without the template engine and without pictures there is no page. Raises `ConfigError` where
    there are pictures and no template engine.
    """
    tables = {"layers": profile.rows(), "pages": profile.page_rows(), "blocks": list(_blocks(profile))}
    document_path, page_path = folder / "profile.json", folder / "index.html"
    document_path.write_text(json.dumps(document, allow_nan=False, indent=1) + "\n", "utf-8")
    paths = [document_path]
    for name, rows in tables.items():
        paths.append(folder / f"{name}.csv")
        _csv(paths[-1], rows)
    if pictures or templates.installed():
        page_path.write_text(_html(profile, tables["layers"], pictures), "utf-8")
        paths.append(page_path)
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
    return templates.render(
        "dsa_verify.profile",
        "page.html.j2",
        model=source.model,
        synthetic=source.synthetic,
        source=f"{source.text}. {source.tokens:,} tokens; index_topk {source.index_topk:,}, selected by "
        f"{source.granularity}; the window is the last {len(profile.layers[0].window.positions):,} queries; "
        f"pages of {profile.plan.page_size} tokens.",
        table=_table(rows),
        pictures=[
            {
                "finding": one.finding,
                "explanation": one.explanation,
                "data": base64.b64encode(one.path.read_bytes()).decode("ascii"),
            }
            for one in pictures
        ],
    )


def _table(rows: Sequence[Mapping[str, object]]) -> templates.Table:
    headings = tuple(_COLUMNS.values())
    cells = (templates.TableRow(tuple(_number(row[name]) for name in _COLUMNS)) for row in rows)
    return templates.Table("Layers by block size", headings, tuple(cells), numbers=headings)


def _number(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
