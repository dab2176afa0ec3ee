"""A parity run in a screen of Markdown, for a CI page: the verdict, what is rejected and since when."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dsa_verify.report.outcome import Outcome
from dsa_verify.report.overview import VERDICTS, not_verified
from dsa_verify.report.rejections import falls_of, rejections
from dsa_verify.run.known_failures import stale_message

MOST = 20
"""Rejections that are spelled out; the page and the JSON document have all."""


def markdown(outcome: Outcome, history: Path | None = None) -> str:
    """The summary. history: a file of `dsa_verify.report.history`, for since when. Raises `ConfigError`."""
    return "\n".join(_lines(outcome, history)) + "\n"


def _lines(outcome: Outcome, history: Path | None) -> Iterator[str]:
    counts = ", ".join(f"{count} {status}" for status, count in outcome.counts.items())
    yield f"## dsa-verify parity: {VERDICTS[outcome.exit_code]}"
    backend = outcome.provenance.get("backend", "an unknown backend")
    yield f"\n{counts} checks in {outcome.seconds:.0f} s on {backend}.\n"
    yield "| provider | surface | accepted | rejected | not verified |\n| --- | --- | --- | --- | --- |"
    places: dict[tuple[str, str], Counter[str]] = {}
    for one in outcome.results:
        places.setdefault((one.provider, one.surface), Counter())[one.verdict.status] += 1
    for (provider, surface), count in places.items():
        yield f"| {provider} | {surface} | {count['accepted']} | {count['rejected']} | {count['not verified']} |"
    rejected = list(rejections(outcome.results, falls_of(history)))
    for one in rejected[:MOST]:
        yield f"\n**Rejected: {one.provider} {one.surface} {one.scenario}: {one.checks}**" + (
            f" ({one.since})" if history else ""
        )
        yield f"\n```\n{one.reason}\n{one.reproduce}\n```"
    if len(rejected) > MOST:
        yield f"\n{len(rejected) - MOST} more rejections are on the page of the run."
    for entry in outcome.stale:
        yield f"\n**Rejected: {stale_message(entry)}**"
    if reasons := not_verified(outcome.results):
        yield "\nNot verified, and why:\n"
    for one in reasons:
        yield f"- {one.count}: {one.reason} ({one.places})"
