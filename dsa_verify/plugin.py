"""The pytest plugin: parity cases as tests, options to choose them, and a run that verified nothing is not green.

A test that takes the fixture `dsa_case` runs once a case of the plan, and judges it by calling `dsa_run`. Every name
that pytest shares among plugins begins with `dsa`, and a run without such a test is left as it is.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsa_verify.errors import Exit

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadGroupScheduling

    from dsa_verify.run.suite import Case

# Loaded into every pytest run where dsa-verify is installed, so nothing heavy is imported until a parity test is met.

OPTIONS = ("dsa_provider", "dsa_surface", "dsa_scenario", "dsa_provider_path", "dsa_document", "dsa_known_failures")
"""Where pytest keeps what was given; all are empty in a run that has nothing to do with parity."""
DEFAULT_PROVIDERS = ("builtin", "jnp")
"""As `run.suite` has it, which is not imported before it is needed."""
NOT_VERIFIED = "not verified: "

_RAN = "dsa_verify_ran"
"""Attribute of a parity test's report: what it verified. It is plain data, so xdist carries it to the controller."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dsa-verify", "kernel parity (dsa-verify)")
    add = group.addoption
    add("--dsa-provider", action="append", default=[], metavar="NAME", help="a name or module:object")
    add("--dsa-surface", action="append", default=[], metavar="NAME", help="a surface")
    add("--dsa-scenario", action="append", default=[], metavar="GLOB", help="a name or a glob over the tier's")
    add("--dsa-tier", default="quick", metavar="quick|full", help="which scenarios there are")
    add("--dsa-provider-path", metavar="DIR", help="a source checkout to import providers from")
    add("--dsa-document", metavar="FILE", help="a text that the document family is drawn from")
    add("--dsa-known-failures", metavar="FILE", help="a TOML file beside the shipped ones")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "dsa_parity: a kernel on a scenario, judged by every check against the oracle")
    config.pluginmanager.register(_Ledger(config), "dsa_verify_ledger")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadGroupScheduling | None":
    """Keep the cases of one static shape on one xdist worker; scattered, each worker would compile it again.

    Marks of `xdist_group` would say the same, but pytest 9.2 drops the suffix by which xdist 3.8 passes them on.
    A run of other tests is scheduled as it would be without this plugin.
    """
    distribution = config.option.dist
    if not (distribution == "loadgroup" or (distribution == "load" and _asked(config))):
        return None
    from xdist.scheduler import LoadGroupScheduling

    providers = tuple(f"{name}-" for name in config.option.dsa_provider or DEFAULT_PROVIDERS)

    class Grouped(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            case = nodeid.rpartition("[")[2].partition("]")[0]
            group = _groups(config).get(case) if case.startswith(providers) else None
            return group or super()._split_scope(nodeid)

    return Grouped(config, log)


def _asked(config: pytest.Config) -> bool:
    """Whether the command line speaks of parity: by an option of this plugin, or by the marker."""
    given = (config.getoption(name) for name in OPTIONS)
    return any(given) or config.option.dsa_tier != "quick" or "parity" in config.option.markexpr


@lru_cache(maxsize=1)
def _groups(config: pytest.Config) -> dict[str, str]:
    from dsa_verify.errors import ConfigError

    try:
        return {case.name: "-".join(case.group) for case in _plan(config)}
    except ConfigError:  # the workers say so when they collect
        return {}


def _versions(config: pytest.Config) -> str:
    """What ran, in a line."""
    from importlib.metadata import PackageNotFoundError, version

    import dsa_verify

    versions = []
    for package in ("jax", "jaxlib", "libtpu"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    settings = [f"{name.removeprefix('dsa_')}={value}" for name in OPTIONS if (value := config.getoption(name))]
    settings.append(f"tier={config.option.dsa_tier}")
    return f"dsa-verify {dsa_verify.__version__}: {', '.join(versions)}; {', '.join(settings)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dsa_case" not in metafunc.fixturenames:
        return
    from dsa_verify.errors import DsaVerifyError
    from dsa_verify.run import suite

    try:
        cases = _plan(metafunc.config)
        _known_failures(metafunc.config, {case.provider for case in cases})
        suite.scenario_table(_path(metafunc.config, "dsa_document"))
    except DsaVerifyError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    parameters = [pytest.param(case, id=case.name, marks=pytest.mark.dsa_parity) for case in cases]
    metafunc.parametrize("dsa_case", parameters)


def _plan(config: pytest.Config):
    from dsa_verify.run import suite

    option = config.option
    return suite.plan(option.dsa_provider, option.dsa_surface, option.dsa_scenario, option.dsa_tier)


def _known_failures(config: pytest.Config, providers: Iterable[str]):
    """The known failures of these providers and of `--dsa-known-failures`. Raises `ConfigError`."""
    from dsa_verify.run import known_failures

    return known_failures.load(sorted(providers), _path(config, "dsa_known_failures"))


def _path(config: pytest.Config, option: str) -> Path | None:
    value = config.getoption(option)
    return Path(value) if value else None


@pytest.fixture
def dsa_run(request: pytest.FixtureRequest) -> "Callable[[Case], None]":
    """A function that verifies one case and ends the test: it fails on a rejection, skips what was not verified."""

    def run(case) -> None:
        __tracebackhide__ = True
        from dsa_verify.errors import DsaVerifyError

        try:
            results, failed = _judge(request.config, case)
        except DsaVerifyError as error:
            pytest.fail(str(error), pytrace=False)
        statuses = Counter(result.verdict.status for result in results)
        known = [(entry.id, entry.provider, hit) for entry, hit in failed.items()]
        setattr(request.node, _RAN, {"verified": statuses["accepted"] + statuses["rejected"], "known": known})
        properties = request.node.user_properties  # what JUnit writes down with the test
        for result in results:
            properties.append(("check", f"{result.check}: {result.verdict.status}"))
            if result.verdict.share is not None:
                properties.append(("share", f"{result.check}: {result.verdict.share:.3g}"))
        if statuses["rejected"]:
            pytest.fail(_rejection(results), pytrace=False)
        if statuses["not verified"]:
            reasons = dict.fromkeys(r.verdict.reason for r in results if r.verdict.status == "not verified")
            pytest.skip(NOT_VERIFIED + "; ".join(reasons))

    return run


def _judge(config: pytest.Config, case):
    """Results of a case, known failures forgiven, and whether each known failure that it covers was seen to fail."""
    from dsa_verify.run import known_failures, suite
    from dsa_verify.run.verify import on_device

    results = suite.judge_case(case, _path(config, "dsa_provider_path"), _path(config, "dsa_document"))
    entries = known_failures.applicable(_known_failures(config, {case.provider}), native=on_device())
    return known_failures.forgive(results, entries), known_failures.tally(results, entries)


def _rejection(results) -> str:
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.verdict.status == "rejected":
            reasons.setdefault(result.verdict.reason, []).append(result.check)
    told = [f"{', '.join(checks)}: {reason}" for reason, checks in reasons.items()]
    return "\n".join([*told, "reproduce with", results[0].reproduce])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if "dsa_case" in getattr(item, "fixturenames", ()) and call.when == "call":
        setattr(report, _RAN, getattr(item, _RAN, {"verified": 0, "known": []}))
    return report


class _Ledger:
    """What the reports of a session said, kept where they all arrive: the one process, or xdist's controller."""

    def __init__(self, config: pytest.Config) -> None:
        self.worker = hasattr(config, "workerinput")
        self.verified, self.parity, self.others = 0, 0, 0
        self.reasons: Counter[str] = Counter()
        self.known: dict[tuple[str, str], bool] = {}

    @property
    def stale(self) -> list[tuple[str, str]]:
        return [entry for entry, failed in self.known.items() if not failed]

    @property
    def nothing_verified(self) -> bool:
        return self.parity > 0 and self.verified == 0 and self.others == 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ran = getattr(report, _RAN, None)
        if ran is None:
            self.others += report.when == "call"
            return
        self.parity += 1
        self.verified += ran["verified"]
        for entry, provider, failed in ran["known"]:
            self.known[entry, provider] = self.known.get((entry, provider), False) or failed
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.worker or session.exitstatus != pytest.ExitCode.OK:
            return
        if self.stale:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif self.nothing_verified:
            session.exitstatus = Exit.NOTHING_VERIFIED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if not self.parity:
            return
        terminalreporter.write_line(_versions(config))
        if self.reasons:
            terminalreporter.section("not verified, and why")
        for reason, count in self.reasons.most_common():
            terminalreporter.write_line(f"{count:6}  {reason.removeprefix(NOT_VERIFIED)}")
        for entry, provider in self.stale:
            owner = f" of {provider}" if provider else ""
            terminalreporter.write_line(
                f"stale known failure{owner}: {entry} matches no rejection any more; remove the entry", red=True
            )
        if self.nothing_verified:
            terminalreporter.write_line("nothing was verified", red=True)
