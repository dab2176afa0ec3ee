"""What a run leaves behind in files: its record in a history and its page; refused before the run where it cannot."""

from collections.abc import Sequence
from pathlib import Path

from dsa_verify.errors import ConfigError
from dsa_verify.report import history as histories
from dsa_verify.report import templates
from dsa_verify.report.outcome import Outcome
from dsa_verify.report.page import page as html
from dsa_verify.report.parts import PageSection


def check_writable(page: Path | None, history: Path | None, *, repeatable: bool) -> None:
    """Refuse before a run what could not be written after it. repeatable: whether its cases are those of other runs.

    Raises `ConfigError`.
    """
    if page is not None:
        templates.require()
        if not page.parent.is_dir():
            raise ConfigError(f"cannot write {page}: there is no folder {page.parent}; make it, or name another file")
    if history is None:
        return
    if not repeatable:
        raise ConfigError("neither a soak nor a shard has a history; leave out --history, and give it to report merge")
    histories.prepare(history)


def append_to_history(outcome: Outcome, history: Path) -> str:
    """Append a run to a history; returns a line that says so. Raises `ConfigError`."""
    return f"run {histories.append(history, outcome)} of {history}"


def write_page(outcome: Outcome, page: Path, history: Path | None, parts: Sequence[PageSection] = ()) -> str:
    """Write the page of a run; returns a line that says so. Raises `ConfigError`."""
    try:
        page.write_text(html(outcome, history, parts), "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {page}: {error}; name another file") from error
    return f"wrote {page}"
