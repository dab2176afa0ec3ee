"""The JSON document of a parity run, read back as the outcome that it was written from."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from dsa_verify import SCHEMA
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import Heatmap, HeatmapRow, KnownFailure, Result, Verdict
from dsa_verify.report.outcome import STATUSES, Outcome
from dsa_verify.run.known_failures import stale_message
from dsa_verify.run.partition import Shard

HEATMAPS = ("selection", "share")
_EXPECTED = "expected a document of `dsa-verify parity --json`"


def read(path: Path) -> Outcome:
    """The run that a file holds. Raises `ConfigError` for a file that is no such document, or of another schema."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}; {_EXPECTED}") from error
    if not isinstance(content, dict) or "results" not in content or "entries" not in content:
        raise ConfigError(f"{path} holds no parity run; {_EXPECTED}")
    if content.get("schema") != SCHEMA:
        raise ConfigError(f"{path} has schema {content.get('schema')}, expected {SCHEMA}; run parity again")
    try:
        return outcome(content)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {type(error).__name__} {error}; {_EXPECTED}") from error


def outcome(content: dict[str, Any]) -> Outcome:
    """The outcome whose `document()` is `content`. Raises `KeyError`, `TypeError` or `ValueError` for other content."""
    names = [field.name for field in fields(KnownFailure)]
    seen = {KnownFailure(**{name: raw[name] for name in names}): bool(raw["shown"]) for raw in content["entries"]}
    by_message = {stale_message(entry): entry for entry in seen}
    return Outcome(
        command=content["command"],
        seconds=float(content["seconds"]),
        provenance=content["provenance"],
        results=tuple(_result(record, list(seen)) for record in content["results"]),
        stale=tuple(by_message[message] for message in content["stale"]),
        seen=seen,
        shard=Shard(**content["shard"]) if content["shard"] else None,
    )


def _result(record: dict[str, Any], entries: list[KnownFailure]) -> Result:
    status = record["verdict"].replace("_", " ")
    if status not in STATUSES:
        raise ValueError(f"verdict {record['verdict']!r}")
    share = None if record["share"] is None else float(record["share"])
    known = _forgiving(record, entries) if "known" in record else None
    broke, was = (str(record.get(key, "")) for key in ("broke", "found"))
    provider, surface, scenario, check = (str(record[key]) for key in ("provider", "surface", "scenario", "check"))
    verdict = Verdict(status, str(record["reason"]), share, _heatmap(record))  # pyright: ignore[reportArgumentType]
    seconds, reproduce = float(record["seconds"]), str(record["reproduce"])
    return Result(provider, surface, scenario, check, verdict, seconds, reproduce, broke, known, was)


def _heatmap(record: dict[str, Any]) -> Heatmap | None:
    if "heatmap" not in record:
        return None
    raw = record["heatmap"]
    if raw["kind"] not in HEATMAPS:
        raise ValueError(f"heatmap of kind {raw['kind']!r}")
    return Heatmap(**{**raw, "rows": tuple(HeatmapRow(**row) for row in raw["rows"])})


def _forgiving(record: dict[str, Any], entries: list[KnownFailure]) -> KnownFailure:
    """The entry that forgave a rejection: by id, provider and reason, since two files may list one id."""
    for entry in entries:
        same = entry.id == record["known"] and record["reason"] == f"known failure: {entry.reason}"
        if same and entry.provider in ("", record["provider"]):
            return entry
    raise ValueError(f"no entry for the known failure {record['known']!r}")
