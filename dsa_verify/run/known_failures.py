"""Known failures of a provider: TOML entries with a reason, listed in every run, refused once they are gone."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import CHECKS
from dsa_verify.contract import SURFACES
from dsa_verify.errors import ConfigError, unknown_name
from dsa_verify.evidence import KnownFailure, Result, Verdict

WHEN = ("interpret", "native")


def load(providers: Iterable[str], file: Path | None = None) -> tuple[KnownFailure, ...]:
    """The entries shipped for these providers, and those of a file of the user's.

    Raises `ConfigError` for a file that cannot be read or an entry that names what does not exist.
    """
    found: list[KnownFailure] = []
    for provider in dict.fromkeys(providers):
        shipped = resources.files("dsa_verify.kernels.providers") / "known_failures" / f"{provider}.toml"
        if provider.isidentifier() and shipped.is_file():
            found += parse(shipped.read_text("utf-8"), shipped.name, provider)
    if file is not None:
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read --known-failures {file}: {error}") from error
        found += parse(text, str(file))
    return tuple(found)


def parse(text: str, where: str, provider: str = "") -> list[KnownFailure]:
    """Entries of a TOML text: tables `[[failure]]`, and a `provider` for all of them. Raises `ConfigError`.

    The `id` of a table may be a list; each one is then an entry that may go stale by itself.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    owner = data.pop("provider", provider)
    entries = data.pop("failure", [])
    if data or not isinstance(entries, list) or not isinstance(owner, str):
        raise ConfigError(f"{where}: expected [[failure]] tables and at most a provider, found {', '.join(data)}")
    if provider not in ("", owner):
        raise ConfigError(f"{where} is for provider {owner!r}, expected {provider!r}")
    return [
        _entry(one, f"{where}, [[failure]] {index}", owner)
        for index, raw in enumerate(entries, 1)
        for one in _each_id(raw)
    ]


def _each_id(raw: object) -> list[object]:
    """One entry an id: a finding that shows in several places is written down once, with a list of ids."""
    if isinstance(raw, dict) and isinstance(raw.get("id"), list):
        return [{**raw, "id": one} for one in raw["id"]] or [raw]
    return [raw]


def _entry(raw: object, where: str, provider: str) -> KnownFailure:
    names = {field.name for field in fields(KnownFailure)} - {"provider"}
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise ConfigError(f"{where}: expected a table of strings")
    if missing := [name for name in ("id", "reason", "smallest") if not raw.get(name)]:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    if unknown := set(raw) - names:
        raise ConfigError(f"{where}: {unknown_name('key', min(unknown), names)}")
    entry = KnownFailure(**raw, provider=provider)
    parts = entry.id.split("/")
    if len(parts) != 3:
        raise ConfigError(f"{where}: id {entry.id!r} is not of the form surface/scenario-glob/check")
    surface, scenario, check = parts
    if surface not in SURFACES:
        raise ConfigError(f"{where}: {unknown_name('surface', surface, SURFACES)}")
    if check != "*" and check not in CHECKS:
        raise ConfigError(f"{where}: {unknown_name('check', check, CHECKS)}")
    if not any(fnmatchcase(name, scenario) for name in SCENARIOS):
        raise ConfigError(f"{where}: no scenario matches {scenario!r}")
    if entry.when not in ("", *WHEN):
        raise ConfigError(f"{where}: {unknown_name('when', entry.when, WHEN)}")
    return entry


def applicable(entries: Iterable[KnownFailure], *, native: bool) -> tuple[KnownFailure, ...]:
    """The entries that may show when kernels run natively, or in interpret mode."""
    return tuple(entry for entry in entries if entry.when in ("", WHEN[native]))


def forgive(results: Iterable[Result], entries: Sequence[KnownFailure]) -> list[Result]:
    """The results, with rejections that match an entry not verified; they keep the entry and what was found.

    A case in which the suite itself broke is never forgiven.
    """
    return [_forgiven(result, entries) for result in results]


def _forgiven(result: Result, entries: Sequence[KnownFailure]) -> Result:
    entry = next((entry for entry in entries if entry.matches(result)), None)
    if entry is None or result.verdict.status != "rejected" or result.broke:
        return result
    verdict = Verdict.not_verified(f"known failure: {entry.reason}")
    return replace(result, verdict=verdict, known=entry, found=result.verdict.reason)


def tally(results: Iterable[Result], entries: Sequence[KnownFailure]) -> dict[KnownFailure, bool]:
    """Whether each entry that matches a check that ran was seen to fail; from results that are not yet forgiven."""
    seen: dict[KnownFailure, bool] = {}
    for result in results:
        if result.verdict.status == "not verified":
            continue
        for entry in entries:
            if entry.matches(result):
                seen[entry] = seen.get(entry, False) or result.verdict.status == "rejected"
    return seen


def stale_message(entry: KnownFailure) -> str:
    """What is said of an entry whose cases ran and none of them failed."""
    owner = f" of {entry.provider}" if entry.provider else ""
    return (
        f"stale known failure{owner}: {entry.id} ({entry.reason}) matches no rejection any more, although its cases "
        f"ran; remove the entry"
    )
