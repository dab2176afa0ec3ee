"""A record for a reader: where it comes from, what it pins, selections as ranges."""

from collections.abc import Iterator, Mapping
from typing import Any

from dsa_verify.golden.canonical import candidates, ranges
from dsa_verify.golden.compare import place


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """The record, line by line."""
    yield f"record {record['surface']}/{record['scenario']}"
    yield from _table("recipe", record["recipe"])
    yield from _table("inputs", record["inputs"])
    if "selection" in record:
        yield "selection"
        for token, row in enumerate(record["selection"]):
            yield f"  {place(record['recipe'], token)}: {ranges(candidates(row))}"
    for name, output in record.get("outputs", {}).items():
        yield f"output {name} {output['shape']}, {output['empty']} elements at -inf, tolerance {output['tolerance']}"
        for at, value in output["samples"].items():
            yield f"  {name}[{at}] = {value}"
        for token, row in enumerate(output["rows"]):
            yield f"  {place(record['recipe'], token)}: signed sums {', '.join(f'{value:.6g}' for value in row)}"
    if "cache_kv" in record:
        cache = record["cache_kv"]
        yield f"cache_kv {cache['pool']}"
        yield from (
            f"  page {page}  {digest}" for page, digest in sorted(cache["written"].items(), key=lambda p: int(p[0]))
        )
    yield from _table("budget", record.get("budget", {}))
    for name, entry in record.get("providers", {}).items():
        yield from _table(f"provider {name}", entry.get("share", entry))
        yield from _table(f"provider {name} promises", entry.get("promise", {}))
        yield from _table(f"provider {name} moves", entry.get("moved", {}))
    yield from _table("provenance (not compared)", record["provenance"])


def _table(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    if values:
        yield title
        width = max(map(len, values))
        yield from (f"  {name:<{width}}  {value}" for name, value in values.items())
