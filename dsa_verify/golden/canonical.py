"""The one way to write a record down: sorted keys, one line a row, a digest of itself; and to read it back or refuse.

Chosen candidates (positions or sequence-local pages) are written as one character each, in ascending order: how many
candidates were skipped since the last chosen one, 0-9 A-Z a-z for 0 to 61; `.` skips 62 and chooses none. `0000` is
0 to 3, `0003` is 0, 1, 2 and 6, and an empty row chooses nothing.
"""

import hashlib
import json
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsa_verify.errors import GoldenError

SCHEMA = 1
_SYMBOLS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_LEAP = "."


def gaps(chosen: Iterable[int]) -> str:
    """Candidates as text; their order is not kept, as no surface promises one, and negative ones are fill."""
    out, next_free = [], 0
    for candidate in sorted(c for c in chosen if c >= 0):
        leaps, skipped = divmod(candidate - next_free, len(_SYMBOLS))
        out.append(_LEAP * leaps + _SYMBOLS[skipped])
        next_free = candidate + 1
    return "".join(out)


def candidates(row: str) -> list[int]:
    """What `gaps` wrote, ascending."""
    chosen, next_free = [], 0
    for symbol in row:
        if symbol == _LEAP:
            next_free += len(_SYMBOLS)
        else:
            chosen.append(next_free + _SYMBOLS.index(symbol))
            next_free = chosen[-1] + 1
    return chosen


def ranges(chosen: Iterable[int]) -> str:
    """Ascending candidates for a reader: `0-3, 7`."""
    spans: list[list[int]] = []
    for candidate in chosen:
        if spans and candidate == spans[-1][1] + 1:
            spans[-1][1] = candidate
        else:
            spans.append([candidate, candidate])
    return ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in spans) or "nothing"


def text(record: Mapping[str, object]) -> str:
    """The canonical text of a record, its digest included."""
    body = {key: value for key, value in record.items() if key != "digest"}
    return _text({**body, "digest": digest(body)})


def digest(record: Mapping[str, object]) -> str:
    """SHA-256 of the canonical text of all but the digest itself."""
    body = {key: value for key, value in record.items() if key != "digest"}
    return hashlib.sha256(_text(body).encode()).hexdigest()


def parse(content: str, where: str) -> dict[str, Any]:
    """A record from its text. Raises `GoldenError` for one that is not exactly as it was written."""
    try:
        record = json.loads(content)
    except ValueError as error:
        raise _untrusted(where, f"is not JSON ({error}); it is truncated or corrupt") from error
    if not isinstance(record, dict) or "digest" not in record:
        raise _untrusted(where, "has no digest, so it is not a golden record")
    if record.get("schema") != SCHEMA:
        raise _untrusted(where, f"has schema {record.get('schema')}, expected {SCHEMA}")
    wanted = digest(record)
    if record["digest"] != wanted:
        raise _untrusted(where, f"was changed by hand: it states digest {record['digest']}, its content has {wanted}")
    if content != text(record):
        raise _untrusted(where, "is not in canonical form: it was reformatted by hand or by a tool")
    return record


def _untrusted(where: str, reason: str) -> GoldenError:
    return GoldenError(
        f"{where} {reason}. Restore it with `git checkout -- {where}`, or write it anew with "
        f"`dsa-verify golden update` (compiles.json: `dsa-verify compile --golden update`)."
    )


def _text(record: Mapping[str, object]) -> str:
    return "\n".join(_lines(record, 1)) + "\n"


def _lines(value: Mapping[str, object], depth: int) -> Iterator[str]:
    """A mapping, one key a line; a list of rows, one row a line; anything else on its line."""
    yield "{"
    last = len(value) - 1
    for at, key in enumerate(sorted(value)):
        item, end = value[key], "," if at < last else ""
        head = " " * depth + f"{json.dumps(key)}: "
        if isinstance(item, Mapping) and item:
            first, *rest = _lines(item, depth + 1)
            yield head + first
            yield from rest[:-1]
            yield rest[-1] + end
        elif isinstance(item, list) and len(item) > 1 and isinstance(item[0], list | str):
            rows = (",\n" + " " * (depth + 1)).join(_atom(row) for row in item)
            yield head + "[\n" + " " * (depth + 1) + rows + "\n" + " " * depth + "]" + end
        else:
            yield head + _atom(item) + end
    yield " " * (depth - 1) + "}"


def _atom(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False)
