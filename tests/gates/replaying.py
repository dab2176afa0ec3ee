"""LongBench rows with answers to them, and lm-eval itself run over both, offline: what the gate is held against."""

import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [f"word{n}" for n in range(400)]
CLASSES = ["Date", "Other location", "City", "Individual", "Number of something"]


def rows_of(task: str, count: int) -> list[dict[str, Any]]:
    """So many rows of a task with the hub's columns; references are of the kind that the task has."""
    rng = np.random.default_rng([7, *task.encode()])
    return [
        {
            "_id": f"{task}-{n}", "context": said(rng, 60), "question": said(rng, 6), "answers": references(task, rng),
            "length": 60, "dataset": task, "language": "en", "all_classes": CLASSES if task == "trec" else None,
        }
        for n in range(count)
    ]  # fmt: skip


def references(task: str, rng: np.random.Generator) -> list[str]:
    if task == "trec":
        return [str(rng.choice(CLASSES))]
    if task == "passage_count":
        return [str(rng.integers(1, 20))]
    if task == "passage_retrieval_en":
        return [f"Paragraph {rng.integers(1, 30)}"]
    if task in ("gov_report", "qmsum", "multi_news", "samsum"):
        return [said(rng, 40)]
    return [said(rng, int(rng.integers(1, 6))) for _ in range(int(rng.integers(1, 4)))]


def answers_to(task: str, rows: Sequence[Mapping[str, Any]], seed: int) -> list[str]:
    """An answer to each row: right, right in part, wrong, or right with chatter. One line, as the first-line rule has
    it; for code several, of which the scorer takes the first that is code."""
    rng = np.random.default_rng([seed, *task.encode()])
    several = "\n# a remark\nreturn 1" if task in ("lcc", "repobench-p") else ""
    answers = []
    for row in rows:
        right = str(rng.choice(row["answers"]))
        half = " ".join(right.split()[: 1 + len(right.split()) // 2])
        kinds = (right, half, said(rng, 5), f"{right} {said(rng, 4)} 7", f"The answer is {half}.", f"  {right} 3 of 30")
        answers.append(str(rng.choice(kinds)) + several)
    return answers


def said(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words))


def evaluate(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    answers: Mapping[str, Sequence[str]],
    work: Path,
    output: Path | None = None,
) -> dict[str, Any]:
    """What `lm_eval.simple_evaluate` returns for LongBench tasks over these rows, with a model that gives the answers.

    work: for files that it reads. output: where it writes samples and results, as its command line does.
    """
    import datasets
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    datasets.config.HF_DATASETS_CACHE = work / "cache"
    for task, some in rows.items():
        _describe(task, some, work)
    tracker = EvaluationTracker(output_path=str(output)) if output else None
    given = {}
    for task, some in rows.items():
        keys = ((row["context"], row["question"]) for row in some)
        given |= dict(zip(keys, answers[task], strict=True))
    with warnings.catch_warnings():  # of what it imports
        warnings.simplefilter("ignore")
        results = simple_evaluate(
            _replay(given), tasks=[f"longbench_{task}" for task in rows], bootstrap_iters=0,
            evaluation_tracker=tracker, task_manager=TaskManager(include_path=str(work), include_defaults=False),
        )  # fmt: skip
    assert results is not None
    if tracker is not None:
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for name in results["configs"]:
            tracker.save_results_samples(task_name=name, samples=samples[name])
    return results


def _replay(given: Mapping[tuple[str, str], str]) -> Any:
    from lm_eval.api.model import LM

    class Replay(LM):
        """Answers by context and question."""

        def generate_until(self, requests):
            return [given[request.doc["context"], request.doc["question"]] for request in requests]

        def loglikelihood(self, requests):
            raise NotImplementedError

        def loglikelihood_rolling(self, requests):
            raise NotImplementedError

    return Replay()


def _describe(task: str, rows: Sequence[Mapping[str, Any]], work: Path) -> None:
    """A task file that includes lm-eval's own and reads the rows from here."""
    package = importlib.util.find_spec("lm_eval")
    assert package is not None and package.origin is not None
    data = work / f"{task}.jsonl"
    work.mkdir(parents=True, exist_ok=True)
    data.write_text(
        "".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows), "utf-8"
    )
    own = Path(package.origin).parent / "tasks" / "longbench" / f"{task}.yaml"
    (work / f"{task}.yaml").write_text(
        f"include: {own}\ntask: longbench_{task}\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs:\n  data_files:\n    test: {data}\n"
    )
