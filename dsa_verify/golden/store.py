"""The folder of records: where each is, reading, what does not belong there, and when nothing may be written."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsa_verify.errors import ConfigError, GoldenError
from dsa_verify.golden import canonical

RECORDS = "surfaces"
"""The part of `golden/` that is ours; other folders of it have other owners."""

LARGEST, LARGEST_FOLDER = 8 * 1024, 2 * 1024**2
"""Bytes of one record, and of all of `golden/`."""

Name = tuple[str, str]
"""(surface, scenario) of a record."""


def folder_at(path: Path) -> Path:
    """The golden folder, which must exist. Raises `ConfigError`."""
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}; run in the root of a checkout of dsa-verify, or give --folder")
    return path


def path_of(folder: Path, name: Name) -> Path:
    """The file of a record."""
    surface, scenario = name
    return folder / RECORDS / surface / f"{scenario}.json"


def read(folder: Path, name: Name) -> dict[str, Any] | None:
    """A record, or None where there is none. Raises `GoldenError` for one that cannot be trusted."""
    return read_file(path_of(folder, name))


def read_file(path: Path) -> dict[str, Any] | None:
    """As `read`, for the path that a record has."""
    try:
        record = canonical.parse(path.read_bytes().decode("utf-8"), str(path))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise GoldenError(f"{path} is not UTF-8 ({error}); restore it with `git checkout -- {path}`") from error
    if (record["surface"], record["scenario"]) != (path.parent.name, path.stem):
        raise GoldenError(f"{path} holds the record of {record['surface']}/{record['scenario']}; it was moved by hand")
    return record


def strays(folder: Path, wanted: Iterable[Name]) -> list[Path]:
    """Files that no scenario and surface accounts for."""
    expected = {path_of(folder, name) for name in wanted}
    return sorted(p for p in (folder / RECORDS).rglob("*") if p.is_file() and p not in expected)


def guard(folder: Path, part: str = RECORDS) -> None:
    """Raise `GoldenError` where records may not be changed: in CI, and where git has no copy of what is replaced."""
    if os.environ.get("CI"):
        raise GoldenError(
            "golden records are not updated in CI (the variable CI is set); update and review them by hand"
        )
    command = ["git", "status", "--porcelain", "--untracked-files=all", "--", part]
    try:
        status = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        detail = (getattr(error, "stderr", "") or str(error)).strip()
        raise GoldenError(f"{folder} is not under git ({detail}), so an update could not be reviewed") from error
    if changed := status.splitlines():
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise GoldenError(
            f"{folder / part} has changes that are not committed ({changed[0].strip()}{more}); commit or "
            f"discard them, so that the update can be reviewed alone"
        )
