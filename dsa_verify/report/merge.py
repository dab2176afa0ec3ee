"""Several runs as one: parts of a plan that ran in different places become the outcome of running it at once."""

from collections.abc import Mapping, Sequence

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.contract import SURFACES
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import KnownFailure, Result
from dsa_verify.report.outcome import Outcome
from dsa_verify.run.partition import SHARDING, joined

PROCESS = "process"
"""The entry of the provenance that says which process of a multi-host run this was."""


def merge(runs: Mapping[str, Outcome], command: str) -> Outcome:
    """The runs as if they had been one: results in plan order, known failures counted over all of them. A check that
    the processes of a multi-host run made in parts gets the worst verdict of its parts.

    runs: by the name that an error calls them by. `seconds` is the sum of theirs. Raises `ConfigError` if they differ
    in provenance, share a case, or are shards that do not make up one plan.
    """
    names, outcomes = list(runs), list(runs.values())
    for name, one in zip(names[1:], outcomes[1:], strict=True):
        _same_provenance(names[0], outcomes[0].provenance, name, one.provenance)
    _no_overlap(runs)
    _whole(runs)
    seen: dict[KnownFailure, bool] = {}
    for one in outcomes:
        for entry, shown in one.entries.items():
            seen[entry] = seen.get(entry, False) or shown
    return Outcome(
        command=command,
        seconds=sum(one.seconds for one in outcomes),
        provenance={key: value for key, value in outcomes[0].provenance.items() if key != PROCESS},
        results=_in_plan_order(outcomes),
        stale=tuple(entry for entry, shown in seen.items() if not shown),
        seen=seen,
    )


def _same_provenance(first: str, expected: Mapping[str, object], name: str, found: Mapping[str, object]) -> None:
    for key in dict.fromkeys([*expected, *found]):
        if key != PROCESS and expected.get(key) != found.get(key):
            raise ConfigError(
                f"{name} and {first} are not one run: {key} is {found.get(key)!r} in {name} and {expected.get(key)!r} "
                f"in {first}; run all parts with equal versions on equal devices"
            )


def _place(result: Result) -> tuple[str, str, str]:
    return result.provider, result.surface, result.scenario


def _no_overlap(runs: Mapping[str, Outcome]) -> None:
    owner: dict[tuple[str, str, str], str] = {}
    for name, one in runs.items():
        for place in dict.fromkeys(_place(result) for result in one.results if result.check != SHARDING):
            if place in owner:
                raise ConfigError(
                    f"{' '.join(place)} is in {owner[place]} and in {name}; a case may be in one run only, so leave "
                    f"one of them out"
                )
            owner[place] = name


def _whole(runs: Mapping[str, Outcome]) -> None:
    """Shards must be all of one plan, cut into as many; runs that are no shards may be any."""
    shards = {name: one.shard for name, one in runs.items()}
    if not any(shards.values()):
        return
    first_name, first = next((name, shard) for name, shard in shards.items() if shard is not None)
    for name, shard in shards.items():
        if shard is None or (shard.of, shard.plan) != (first.of, first.plan):
            raise ConfigError(
                f"{name} is not a shard of the plan of {first_name}; run every shard with the same options, durations "
                f"and n of --shard i/n"
            )
    there = [shard.index for shard in shards.values() if shard is not None]
    if missing := [str(index) for index in range(1, first.of + 1) if index not in there]:
        raise ConfigError(f"shard {', '.join(missing)} of {first.of} is missing; give the documents of all shards")


def _in_plan_order(outcomes: Sequence[Outcome]) -> tuple[Result, ...]:
    """As `suite.plan` orders cases; a case's checks keep their order. Unknown names, of a soak, come last by name."""
    results = joined(result for one in outcomes for result in one.results)
    providers: dict[str, None] = {}
    for one in outcomes:
        listed = one.provenance.get("providers")
        providers.update(dict.fromkeys(listed if isinstance(listed, Mapping) else ()))
    providers.update(dict.fromkeys(result.provider for result in results))
    provider, surface, scenario = ({name: at for at, name in enumerate(x)} for x in (providers, SURFACES, SCENARIOS))

    def key(result: Result) -> tuple[int, int, int, str]:
        last = len(scenario)
        return (
            provider[result.provider], surface.get(result.surface, len(surface)),
            scenario.get(result.scenario, last), result.scenario,
        )  # fmt: skip

    return tuple(sorted(results, key=key))
