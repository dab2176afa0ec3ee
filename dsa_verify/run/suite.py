"""Plan many cases and run them: every static shape is compiled once, by one of a few worker processes."""

import os
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from dsa_verify.batch import Scenario
from dsa_verify.batch.soak import is_soak
from dsa_verify.batch.table import SCENARIOS, TIERS, with_document
from dsa_verify.batch.values import word_ids
from dsa_verify.checks import checks_for
from dsa_verify.contract import SURFACES, Provider, Surface, surface_named
from dsa_verify.errors import ConfigError, DsaVerifyError, unknown_name
from dsa_verify.evidence import Result, Subject, Verdict
from dsa_verify.kernels.providers import load_provider, provider_names
from dsa_verify.run import workers

DEFAULT_PROVIDERS = ("builtin", "jnp")


class Judge(Protocol):
    """What is made of one case: `verify`, or a function of a module that does less or other things with it."""

    def __call__(
        self, surface: Surface, provider: Provider, scenario: Scenario, *, subject: Subject
    ) -> tuple[Result, ...]: ...


@dataclass(frozen=True)
class Case:
    """One kernel on one scenario, by name. Cases of one `group` share their compilations."""

    provider: str
    surface: str
    scenario: str
    bucket: str

    @property
    def name(self) -> str:
        return f"{self.provider}-{self.surface}-{self.scenario}"

    @property
    def group(self) -> tuple[str, str, str]:
        return self.provider, self.surface, self.bucket


def plan(
    providers: Iterable[str] = (), surfaces: Iterable[str] = (), scenarios: Iterable[str] = (), tier: str = "quick"
) -> tuple[Case, ...]:
    """The cases to run, in the order of the tables.

    Args:
      providers: names, or `module:object`; builtin and jnp when empty.
      surfaces: names; all of them when empty.
      scenarios: names, whatever their tier, and globs over the names of the tier; all of the tier when empty.
      tier: quick or full. The full tier contains the quick one.

    Raises `ConfigError` for a name that does not exist, a glob that matches nothing, and a plan without a case.
    """
    providers, surfaces = tuple(providers) or DEFAULT_PROVIDERS, tuple(surfaces) or tuple(SURFACES)
    scenarios = tuple(scenarios) or ("*",)
    if tier not in TIERS:
        raise unknown_name("tier", tier, TIERS)
    for provider in providers:
        _check_provider(provider)
    wanted_surfaces = {surface_named(name).name for name in surfaces}
    wanted = {name for pattern in scenarios for name in _matching(pattern, tier)}
    chosen = [scenario for scenario in SCENARIOS.values() if scenario.name in wanted]
    chosen += [SCENARIOS[name] for name in sorted(wanted) if is_soak(name)]
    cases = tuple(
        Case(provider, surface.name, scenario.name, scenario.bucket.name)
        for provider in dict.fromkeys(providers)
        for surface in SURFACES.values()
        if surface.name in wanted_surfaces
        for scenario in chosen
        if scenario.decode or not surface.decode_only
    )
    if not cases:
        raise ConfigError(
            f"nothing to run: {', '.join(sorted(wanted_surfaces))} takes decode scenarios only, and none was named; "
            f"try --scenario 'decode-*'"
        )
    return cases


def _check_provider(name: str) -> None:
    module, colon, attribute = name.partition(":")
    if colon and not (module and attribute):
        raise ConfigError(f"provider {name!r} is not of the form module:object")
    if not colon and name not in provider_names():
        raise unknown_name("provider", name, provider_names())


def _matching(pattern: str, tier: str) -> list[str]:
    if pattern in SCENARIOS:
        return [pattern]
    if not set(pattern) & set("*?["):
        raise unknown_name("scenario", pattern, SCENARIOS)
    matches = [scenario for scenario in SCENARIOS.values() if fnmatchcase(scenario.name, pattern)]
    names = [scenario.name for scenario in matches if tier in ("full", scenario.tier)]
    if names:
        return names
    if matches:
        raise ConfigError(
            f"no scenario of tier {tier} matches {pattern!r}; {len(matches)} of tier full do: --tier full"
        )
    raise ConfigError(f"no scenario matches {pattern!r}; `dsa-verify list scenarios` prints the names")


@lru_cache
def scenario_table(document: Path | None = None) -> dict[str, Scenario]:
    """The scenario table, its `document` family drawn from a file if one is given. Raises `ConfigError`."""
    if document is None:
        return SCENARIOS
    word_ids(document)
    return with_document(document)


@lru_cache
def load(name: str, path: Path | None = None) -> Provider:
    """Load a provider once a process: its kernels keep their identity, and so their compilations."""
    return load_provider(name, path)


def provenance(providers: Iterable[str], path: Path | None = None) -> dict[str, object]:
    """Versions and device that the results depend on. Loads every provider, so that one that cannot be is refused
    before anything runs. Raises `ConfigError` and `ProviderError`."""
    import dsa_verify
    from dsa_verify.runtime import environment

    workers.prepare_environment()
    versions = {name: load(name, path).version for name in providers}
    return {"dsa_verify": dsa_verify.__version__, **environment(), "providers": versions}


def subject_of(case: Case, provider_path: Path | None = None, document: Path | None = None, *more: str) -> Subject:
    """How the results of a case name it, with the options that it was run with; `more` of them at the end."""
    options = ["--provider-path", str(provider_path)] if provider_path else []
    options += ["--document", str(document)] if document else []
    return Subject.of(case.provider, case.surface, case.scenario, [*options, *more])


def judge_case(
    case: Case, provider_path: Path | None = None, document: Path | None = None, judge: Judge | None = None
) -> tuple[Result, ...]:
    """Verify one case in this process, by every check or as `judge` does.

    A fault of the suite itself is a rejection that has `broke`, so that one case cannot end a run.
    Raises `DsaVerifyError` for bad input: a provider that cannot be loaded, a call that breaks a contract.
    """
    from dsa_verify.run.verify import verify

    surface, provider = surface_named(case.surface), load(case.provider, provider_path)
    scenario = scenario_table(document)[case.scenario]
    subject = subject_of(case, provider_path, document)
    try:
        return (judge or verify)(surface, provider, scenario, subject=subject)
    except DsaVerifyError:
        raise
    except Exception as error:
        return _unjudged(subject, f"the suite broke: {type(error).__name__}: {error}", traceback.format_exc())


def _unjudged(subject: Subject, reason: str, broke: str) -> tuple[Result, ...]:
    """Rejections by every check, for a case that left no evidence to judge."""
    surface = surface_named(subject.surface)
    names = checks_for(attends=surface.attends, selects=surface.selects, writes=surface.writes)
    return subject.results(dict.fromkeys(names, Verdict.rejected(reason)), broke=broke)


def run_cases(
    cases: Sequence[Case],
    *,
    jobs: int | None = None,
    provider_path: Path | None = None,
    document: Path | None = None,
    on_result: Callable[[Case, tuple[Result, ...]], None] | None = None,
    judge: Judge | None = None,
) -> list[Result]:
    """Verify every case and return the results in the order of `cases`.

    Args:
      jobs: worker processes; one a core by default, and always one on a TPU. With one, cases run in this process.
      provider_path: a source checkout for the providers.
      document: the text that the document family is drawn from.
      on_result: called with each case and its results as they come.
      judge: what is made of each case; `verify` by default. Worker processes import it by name.

    A case whose worker process dies is rejected, and its results have `broke`. Raises `DsaVerifyError` for
    bad input, as `judge_case` does.
    """
    work = partial(judge_case, provider_path=provider_path, document=document, judge=judge)
    groups = groups_of(cases)
    jobs = job_count(jobs, len(groups))
    judged: dict[Case, tuple[Result, ...]] = {}
    with closing(in_process(groups, work) if jobs == 1 else workers.run_groups(groups, work, jobs)) as answers:
        for case, answer in answers:
            judged[case] = results_of(case, answer, provider_path, document)
            if on_result is not None:
                on_result(case, judged[case])
    return [result for case in cases for result in judged[case]]


def results_of(
    case: Case,
    answer: tuple[Result, ...] | workers.WorkerDied,
    provider_path: Path | None = None,
    document: Path | None = None,
) -> tuple[Result, ...]:
    """What a worker made of a case; rejections that have `broke` if it died of it."""
    if isinstance(answer, workers.WorkerDied):
        reason = f"{answer} while it ran this case"
        return _unjudged(subject_of(case, provider_path, document), reason, str(answer))
    return answer


def job_count(jobs: int | None, groups: int) -> int:
    """How many processes a run uses: a TPU belongs to one, and more than there are groups would idle."""
    if workers.tpu_wanted():
        return 1
    return max(1, min(jobs or os.cpu_count() or 1, groups))


def in_process(
    groups: Iterable[Sequence[Case]], work: Callable[[Case], tuple[Result, ...]]
) -> Generator[tuple[Case, tuple[Result, ...]], None, None]:
    """As `workers.run_groups`, without workers."""
    workers.prepare_environment()
    for group in groups:
        for case in group:
            yield case, work(case)


def groups_of(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases by what they share compilations with, the most work first, so that no long group is left to the end."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    return sorted(groups.values(), key=lambda group: -sum(map(cost_of, group)))


def cost_of(case: Case) -> int:
    """How large a case is: tokens times pages of its static shape."""
    bucket = SCENARIOS[case.scenario].bucket
    return bucket.tokens * bucket.pages_per_seq
