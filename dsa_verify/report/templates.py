"""HTML pages from templates: the pages of a run, a gate and a profile extend one base with one stylesheet."""

import json
from dataclasses import dataclass
from importlib.util import find_spec

from dsa_verify.errors import ConfigError
from dsa_verify.report.formats import points, share


@dataclass(frozen=True)
class TableRow:
    """One line of a table; `status` is that of a check where the line has one."""

    cells: tuple[str, ...]
    status: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under headings; those in `numbers` are aligned as such. A `folded` one is opened by its reader."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[TableRow, ...]
    numbers: tuple[str, ...] = ()
    folded: bool = False


def installed() -> bool:
    """Whether the template engine is there; it comes with extras."""
    return find_spec("jinja2") is not None


def require() -> None:
    """Raises `ConfigError` where the template engine is not installed."""
    if not installed():
        raise ConfigError("a page needs the package jinja2; pip install jinja2")


def render(package: str, name: str, /, **values: object) -> str:
    """The page of a template of a package, which may extend and import those of `dsa_verify.report`.

    Raises `ConfigError` where the template engine is not installed.
    """
    require()
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(each, ".") for each in dict.fromkeys((package, "dsa_verify.report"))])
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pages.filters |= {"points": points, "share": share, "pretty": _pretty}
    return pages.get_template(name).render(**values)


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
