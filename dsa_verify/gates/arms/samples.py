"""lm-eval's sample files of an earlier run, as the answers of an arm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms.arm import RecordedArm
from dsa_verify.gates.records import Answer, sha
from dsa_verify.gates.tasks.longbench import group_of, longbench
from dsa_verify.gates.tasks.task import Task

PREFIX = "longbench_"


def recorded(name: str, place: Path) -> tuple[RecordedArm, list[Task]]:
    """The arm and its tasks, of `samples_*.jsonl` and `results_*.json` as `lm_eval --log_samples` writes them.

    Documents, prompts and answers are those that were recorded; scores are computed anew. Raises `ConfigError` for a
    file that does not parse, for two files of one task, for another version of a task, and for a run whose samples do
    not show the prompt that lm-eval builds from their documents.
    """
    files = sorted(place.rglob("samples_longbench_*.jsonl")) if place.is_dir() else [place]
    if not files:
        raise ConfigError(f"{place} holds no samples_longbench_*.jsonl; run lm_eval with --log_samples and LongBench.")
    versions, settings = _results(place if place.is_dir() else place.parent)
    tasks, answers, seen = [], {}, {}
    for path in files:
        task_name = _task_of(path)
        if task_name in seen:
            raise ConfigError(f"{path} and {seen[task_name]} are both of {task_name}; keep the run that is meant.")
        seen[task_name] = path
        lines = _lines(path)
        task = longbench(task_name, [line["doc"] for line in lines], str(path))
        _demand_version(path, task, versions.get(PREFIX + task_name))
        for document, line in zip(task.documents, lines, strict=True):
            _demand_prompt(path, document.question.prompt, line)
            text = line["filtered_resps"][0]
            sent = sha(json.dumps(line["arguments"], sort_keys=True))
            answers[document.question.key] = Answer(
                document.question.key, sha(_prompt(line)), sent, text if text else None,
                None if text else "empty_text", None,
            )  # fmt: skip
        tasks.append(task)
    return RecordedArm(name, answers, settings), tasks


def _results(folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Versions of tasks, and the settings of the run, of the newest results file; empty if there is none."""
    found = sorted(folder.rglob("results_*.json"))
    if not found:
        return {}, {}
    try:
        content = json.loads(found[-1].read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{found[-1]} is not JSON ({error}); the file may be cut off.") from None
    model = {key: value for key, value in (content.get("config") or {}).items() if key in ("model", "limit")}
    return content.get("versions") or {}, {"lm_eval": content.get("lm_eval_version"), **model}


def _task_of(path: Path) -> str:
    """samples_longbench_qasper_2026-11-30T12-00-00.json -> qasper"""
    name = path.stem.removeprefix("samples_").rsplit("_", 1)[0].removeprefix(PREFIX)
    group_of(name)
    return name


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    try:  # not splitlines: a text may hold line separators of Unicode, which lm-eval leaves as they are
        texts = path.read_text("utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; expected lm-eval's samples.") from None
    for number, text in enumerate(texts, 1):
        where = f"{path}, line {number}"
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{where} is not JSON ({error}); the file may be cut off.") from None
        missing = [
            key for key in ("doc", "arguments", "filtered_resps") if not (isinstance(line, dict) and line.get(key))
        ]
        if missing:
            raise ConfigError(f"{where} is no sample of lm-eval: it lacks {', '.join(missing)}.")
        lines.append(line)
    return lines


def _prompt(line: Mapping[str, Any]) -> str:
    """The prompt of a sample: lm-eval writes arguments as {"gen_args_0": {"arg_0": prompt, ...}} or as a list."""
    arguments = line["arguments"]
    first = next(iter(arguments.values())) if isinstance(arguments, dict) else arguments[0]
    return first["arg_0"] if isinstance(first, dict) else first[0]


def _demand_prompt(path: Path, built: str, line: Mapping[str, Any]) -> None:
    if _prompt(line) != built:
        raise ConfigError(
            f"{path}: the prompt of document {line.get('doc_id')} is not the one that the installed lm-eval builds "
            "from it; the samples are of another version of the task."
        )


def _demand_version(path: Path, task: Task, recorded_version: float | None) -> None:
    if recorded_version is not None and float(recorded_version) != task.version:
        raise ConfigError(
            f"{path} is of version {recorded_version} of {task.name}, the installed lm-eval has {task.version}; "
            "install the version that made the samples, or run the arm again."
        )
