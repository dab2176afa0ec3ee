"""The journal of an arm: one JSON line an answer, flushed to disk as it comes, so that a killed run can resume."""

import fcntl
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import Answer, Question, sha

SCHEMA = 1
_FIELDS = {field.name for field in fields(Answer)}


class Journal:
    """Answers of one arm in a file that this process alone may write.

    The first line is the header: what the arm is (`arm`, `manifest` and its digest). Every other line is an `Answer`
    with `arm` and `ok`; of two lines with one key the later counts. A line without its end, as a killed process leaves
    it, is dropped with a warning.

    Raises `ConfigError` for a header of another arm or manifest, for a line that does not parse (naming file and line),
    for a file that cannot be written, and while another process has it open.
    """

    def __init__(self, path: Path, arm: str, manifest: Mapping[str, Any]) -> None:
        self.path, self.arm = path, arm
        self.answers: dict[str, Answer] = {}
        manifest = json.loads(json.dumps(manifest))  # as it reads back
        header = {"journal": SCHEMA, "arm": arm, "fingerprint": fingerprint(manifest), "manifest": manifest}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"cannot open the journal {path}: {error}; give a folder that can be written") from None
        try:
            self._lock()
            self._read(header)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file; nothing is pending."""
        self._file.close()

    def find(self, question: Question, payload_sha: str) -> Answer | None:
        """The answer that counts for exactly this question and payload, or None where it has to be asked."""
        answer = self.answers.get(question.key)
        if answer is None or answer.text is None:
            return None
        same = (answer.prompt_sha, answer.payload_sha) == (question.prompt_sha, payload_sha)
        return answer if same else None

    def write(self, answer: Answer) -> None:
        """Adds an answer, or why there is none; it is on the disk when this returns."""
        self._append({"arm": self.arm, "ok": answer.text is not None, **asdict(answer)})
        self.answers[answer.key] = answer

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(f"cannot write to the journal {self.path}: {error}; make room and resume") from None

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another process has the journal {self.path} open; wait for it, or give another folder"
            ) from None

    def _read(self, header: Mapping[str, Any]) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            warnings.warn(
                f"{self.path}: the last line has no end, as when a run was killed; its question is asked again",
                stacklevel=3,
            )
            self._file.truncate(whole)
        lines = content[:whole].split(b"\n")[:-1]
        if not lines:
            self._append(header)
            return
        self._demand_same(_object(lines[0], f"{self.path}, line 1"), header)
        for number, line in enumerate(lines[1:], 2):
            answer = self._answer(line, f"{self.path}, line {number}")
            self.answers[answer.key] = answer

    def _demand_same(self, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        if found.get("journal") != SCHEMA:
            raise ConfigError(f"{self.path}, line 1 is no header of a journal of schema {SCHEMA}; give another folder")
        if found.get("fingerprint") == expected["fingerprint"] and found.get("arm") == expected["arm"]:
            return
        old, new = ({"arm": one.get("arm"), **(one.get("manifest") or {})} for one in (found, expected))
        differ = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
        diff = "; ".join(f"{name} was {old.get(name)!r}, is {new.get(name)!r}" for name in differ[:3])
        raise ConfigError(
            f"the journal {self.path} is of another run ({diff or 'its fingerprint differs'}); answers of two runs are "
            "never mixed, so give another folder or delete it"
        )

    def _answer(self, line: bytes, where: str) -> Answer:
        found = _object(line, where)
        missing = sorted(_FIELDS - set(found))
        if missing or not isinstance(found["key"], str) or (found["text"] is None) == (found["reason"] is None):
            raise ConfigError(f"{where} is no answer ({missing or 'key, text or reason'} wrong); {_REPAIR}")
        return Answer(**{name: found[name] for name in _FIELDS})


_REPAIR = "the file was damaged or edited, so delete that line and its question is asked again"


def fingerprint(manifest: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a manifest, whatever the order of its names."""
    return sha(json.dumps(manifest, sort_keys=True))


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON ({error}); {_REPAIR}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where} holds a {type(found).__name__}, expected an object; {_REPAIR}")
    return found
