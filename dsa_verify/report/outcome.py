"""What a parity run found: its counts, its exit code and its JSON document."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from dsa_verify import SCHEMA
from dsa_verify.errors import Exit
from dsa_verify.evidence import KnownFailure, Result
from dsa_verify.run.known_failures import stale_message
from dsa_verify.run.partition import Shard

STATUSES = ("accepted", "rejected", "not verified")


@dataclass(frozen=True)
class Outcome:
    """A finished parity run. `results` are in plan order, known failures among them forgiven; `stale` are entries
    of known failures that no longer show, `seen` all entries whose cases ran, with whether any of these was rejected.
    `shard` says which part of a plan it was, if not all."""

    command: str
    seconds: float
    provenance: Mapping[str, object]
    results: tuple[Result, ...]
    stale: tuple[KnownFailure, ...] = ()
    seen: Mapping[KnownFailure, bool] = field(default_factory=dict)
    shard: Shard | None = None

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(result.verdict.status for result in self.results)
        return {status: found[status] for status in STATUSES}

    @property
    def known(self) -> dict[KnownFailure, list[Result]]:
        """The known failures that showed, with the rejections each accounts for."""
        seen: dict[KnownFailure, list[Result]] = {}
        for result in self.results:
            if result.known is not None:
                seen.setdefault(result.known, []).append(result)
        return seen

    @property
    def entries(self) -> dict[KnownFailure, bool]:
        """Every entry that is told of, with whether it showed."""
        return {**dict.fromkeys(self.stale, False), **self.seen, **dict.fromkeys(self.known, True)}

    @property
    def exit_code(self) -> Exit:
        if any(result.broke for result in self.results):
            return Exit.BROKE
        if self.counts["rejected"] or self.stale:
            return Exit.REJECTED
        return Exit.ACCEPTED if self.counts["accepted"] else Exit.NOTHING_VERIFIED

    def document(self) -> dict[str, object]:
        """The run for other programs; plain JSON types, no NaN."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "seconds": round(self.seconds, 3),
            "provenance": dict(self.provenance),
            "counts": {status.replace(" ", "_"): count for status, count in self.counts.items()},
            "exit_code": int(self.exit_code),
            "known_failures": [
                {
                    "id": entry.id,
                    "provider": results[0].provider,
                    "reason": entry.reason,
                    "smallest": entry.smallest,
                    "link": entry.link,
                    "count": len(results),
                }
                for entry, results in self.known.items()
            ],
            "stale": [stale_message(entry) for entry in self.stale],
            "entries": [{**asdict(entry), "shown": shown} for entry, shown in self.entries.items()],
            "shard": asdict(self.shard) if self.shard else None,
            "results": [_record(result) for result in self.results],
        }


def _record(result: Result) -> dict[str, object]:
    share, reason = result.verdict.share, result.verdict.reason
    if share is not None and not math.isfinite(share):
        share, reason = None, reason or f"the share of the budget is {share}"
    return {
        "provider": result.provider,
        "surface": result.surface,
        "scenario": result.scenario,
        "check": result.check,
        "verdict": result.verdict.status.replace(" ", "_"),
        "share": share,
        "seconds": round(result.seconds, 4),
        "reason": reason,
        "reproduce": result.reproduce,
        **_more(result),
    }


def _more(result: Result) -> dict[str, object]:
    """What only some results have: the known failure that forgave a rejection and what was found, a traceback, where a
    rejection lies."""
    more: dict[str, object] = {name: text for name in ("found", "broke") if (text := getattr(result, name))}
    if result.known is not None:
        more["known"] = result.known.id
    if result.verdict.heatmap is not None:
        more["heatmap"] = asdict(result.verdict.heatmap)
    return more
