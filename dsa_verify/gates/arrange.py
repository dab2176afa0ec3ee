"""What a gate is to run, from the command's options: tasks with their documents, arms, rule."""

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsa_verify.errors import ConfigError
from dsa_verify.gates import comparable, cut, made
from dsa_verify.gates.arms import Arm, Embedded, Served, Started, served_model
from dsa_verify.gates.broken import demand_mutant
from dsa_verify.gates.records import sha
from dsa_verify.gates.rule import Rule
from dsa_verify.gates.run import Gate
from dsa_verify.gates.tasks import CHINESE, ENGLISH, Task, group_of, longbench, rows_of_file, rows_of_hub

DOCUMENTS_MADE = 32
"""Documents of each made task: as many as the rule needs where nothing differs."""
EMBEDDED_TOPK, EMBEDDED_PAGE = 128, 16
DENSE, SPARSE = {"DSA_PREFILL_SPARSE": "0"}, {"DSA_PREFILL_SPARSE": "1"}
ONE_PAGE = {"DSA_PREFILL_SPARSE": "1", "DSA_PAGE_TOPK": "1"}
_ANSWERING = ("urls", "command")
_ONLY_FOR = {
    "mutant": ("embedded",), "degraded_url": ("urls",), "dense_env": ("command",), "sparse_env": ("command",),
    "data": _ANSWERING, "max_prompt_tokens": _ANSWERING, "tokenizer": _ANSWERING, "work": _ANSWERING,
    "tasks": ("embedded", *_ANSWERING), "documents": ("embedded", *_ANSWERING),
}  # fmt: skip
"""Options that some kinds of arms have no use for; given in vain they are refused."""
_KINDS = {
    "embedded": "the built-in model", "urls": "--dense-url and --sparse-url", "command": "--server-cmd",
    "samples": "recorded samples",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The options of `dsa-verify gate`, by their names there."""

    baseline: str = "dense"
    tasks: tuple[str, ...] = ()
    data: Path | None = None
    documents: int | None = None
    dense_url: str | None = None
    sparse_url: str | None = None
    degraded_url: str | None = None
    server_cmd: str | None = None
    dense_env: tuple[str, ...] = ()
    sparse_env: tuple[str, ...] = ()
    dense_samples: Path | None = None
    sparse_samples: Path | None = None
    model: str | None = None
    api: str = "completions"
    index_topk: int = 2048
    page_size: int = 64
    max_prompt_tokens: int | None = None
    tokenizer: Path | None = None
    concurrency: int = 1
    timeout: float = 300.0
    patience: float = 900.0
    repeats: int = 1
    work: Path | None = None
    controls: bool | None = None
    trust_sparse: bool = False
    differs: tuple[str, ...] = ()
    alpha: float | None = None
    macro_margin: float | None = None
    group_margin: float | None = None
    task_margin: float | None = None
    seed: int | None = None
    mutant: str | None = None
    kernels: str = "jnp"


def arrange(options: Options) -> Gate:
    """The gate that the options ask for. Raises `ConfigError` for options that contradict each other, and bad data."""
    kind = _kind(options)
    return {"embedded": _embedded, "urls": _urls, "command": _command, "samples": _samples}[kind](options)


def provenance() -> dict[str, str]:
    """Versions that a verdict depends on."""
    names = ("dsa-verify", "lm_eval", "jax", "numpy", "scipy", "rouge", "fuzzywuzzy", "jieba")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def _kind(o: Options) -> str:
    given = {
        "urls": bool(o.dense_url or o.sparse_url), "command": bool(o.server_cmd),
        "samples": bool(o.dense_samples or o.sparse_samples),
    }  # fmt: skip
    chosen = [kind for kind, wanted in given.items() if wanted]
    if len(chosen) > 1:
        raise ConfigError("give one kind of arms: --dense-url and --sparse-url, or --server-cmd, or recorded samples.")
    kind = chosen[0] if chosen else "embedded"
    if kind == "urls" and not (o.dense_url and o.sparse_url):
        raise ConfigError("a comparison needs both --dense-url and --sparse-url.")
    if o.dense_url and o.sparse_url and _endpoint(o, o.dense_url).root == _endpoint(o, o.sparse_url).root:
        raise ConfigError("--dense-url and --sparse-url are the same server, which is one arm; start two.")
    if kind == "samples" and not (o.dense_samples and o.sparse_samples):
        raise ConfigError("a comparison needs both --dense-samples and --sparse-samples.")
    for name, kinds in _ONLY_FOR.items():
        if getattr(o, name) and kind not in kinds:
            option = name.removesuffix("s").replace("_", "-") if name == "tasks" else name.replace("_", "-")
            raise ConfigError(f"--{option} means nothing with {_KINDS[kind]}; leave it out.")
    if kind == "urls" and o.controls and not o.degraded_url:
        raise ConfigError("--controls with URLs needs --degraded-url, a server that must not pass.")
    return kind


def _rule(o: Options, controls: bool) -> Rule:
    names = ("alpha", "macro_margin", "group_margin", "task_margin", "seed")
    given = {name: value for name in names if (value := getattr(o, name)) is not None}
    if o.task_margin is not None:
        given["task_limit"] = max(Rule.task_limit, o.task_margin)
    if o.alpha is not None:
        given["alarm_alpha"] = min(Rule.alarm_alpha, o.alpha / 5)
    return Rule(**given, controls=controls)


def _embedded(o: Options) -> Gate:
    names = o.tasks or made.TASKS
    if o.mutant:
        demand_mutant(o.mutant, o.kernels)
    strange = [name for name in names if name not in made.TASKS]
    if strange:
        raise ConfigError(
            f"the built-in model has no documents for {', '.join(strange)}; it has some for {', '.join(made.TASKS)}."
        )
    count = o.documents or DOCUMENTS_MADE
    tasks = [longbench(name, made.made_rows(name, count), "rows made here") for name in names]
    model = {"index_topk": EMBEDDED_TOPK, "kernels": o.kernels}
    controls = o.controls is not False
    return Gate(
        tasks, _rule(o, controls),
        dense=Embedded("dense", DENSE, **model), sparse=Embedded("sparse", SPARSE, **model, mutant=o.mutant),
        same=Embedded("same", DENSE, **model) if controls else None,
        degraded=Embedded("degraded", ONE_PAGE, EMBEDDED_PAGE, o.kernels) if controls else None,
        active_tokens=EMBEDDED_TOPK + EMBEDDED_PAGE, repeats=o.repeats,
    )  # fmt: skip


def _urls(o: Options) -> Gate:
    assert o.dense_url and o.sparse_url
    urls = [url for url in (o.dense_url, o.sparse_url, o.degraded_url) if url]
    endpoints = {url: _listed(_endpoint(o, url)) for url in urls}
    tasks = _tasks(o)
    work, data = _work(o), _data_sha(tasks)

    def arm(name: str, url: str) -> Served:
        return Served(name, endpoints[url], work / f"{name}.jsonl", o.concurrency, data)

    controls = bool(o.controls)
    return Gate(
        tasks, _rule(o, controls), arm("dense", o.dense_url), arm("sparse", o.sparse_url),
        o.index_topk + o.page_size,
        same=arm("same", o.dense_url) if controls else None,
        degraded=arm("degraded", o.degraded_url) if o.degraded_url else None,
        repeats=o.repeats, trusted=o.trust_sparse, treatment=_treatment(o),
    )  # fmt: skip


def _command(o: Options) -> Gate:
    from dsa_verify.gates.servercmd import ServerCommand

    assert o.server_cmd
    dense, sparse = _variables(o.dense_env) or DENSE, _variables(o.sparse_env) or SPARSE
    plain = ServerCommand(o.server_cmd, {})
    tasks = _tasks(o)
    work, data = _work(o), _data_sha(tasks)

    def arm(name: str, environment: Mapping[str, str]) -> Started:
        server = dataclasses.replace(plain, environment=environment)
        journal = work / f"{name}.jsonl"
        return Started(name, server, lambda url: _listed(_endpoint(o, url)), journal, o.concurrency, data)

    controls = bool(o.controls)
    treatment = _treatment(o) | {name for name in dense.keys() | sparse.keys() if dense.get(name) != sparse.get(name)}
    return Gate(
        tasks, _rule(o, controls), arm("dense", dense), arm("sparse", sparse), o.index_topk + o.page_size,
        same=arm("same", dense) if controls else None,
        degraded=arm("degraded", {**sparse, **ONE_PAGE}) if controls else None,
        looks=False, repeats=o.repeats, trusted=o.trust_sparse, treatment=frozenset(treatment),
    )  # fmt: skip


def _samples(o: Options) -> Gate:
    from dsa_verify.gates.samples import recorded

    assert o.dense_samples and o.sparse_samples
    (dense, tasks), (sparse, others) = (
        recorded(name, place) for name, place in (("dense", o.dense_samples), ("sparse", o.sparse_samples))
    )
    tasks, others = (sorted(some, key=lambda task: task.name) for some in (tasks, others))
    names, other_names = ({task.name for task in some} for some in (tasks, others))
    if names != other_names:
        raise ConfigError(f"the samples are of different tasks: {sorted(names ^ other_names)} stand in one arm only.")
    for task, other in zip(tasks, others, strict=True):
        one, two = ({d.number: d.sha for d in some.documents} for some in (task, other))
        if one != two:
            raise ConfigError(
                f"the samples of {task.name} are of different documents: {len(one)} and {len(two)}, of which "
                f"{len(one.items() & two.items())} are equal; run both arms on the same data."
            )
    rule = _rule(o, controls=False)
    return Gate(
        tasks, rule, dense, sparse, o.index_topk + o.page_size,
        looks=False, trusted=o.trust_sparse, treatment=_treatment(o),
    )  # fmt: skip


def _tasks(o: Options) -> list[Task]:
    """LongBench tasks of files or the hub, shortened and cut as asked."""
    english = [name for names in ENGLISH.values() for name in names]
    sets = {"english": english, "all": english + [name for names in CHINESE.values() for name in names]}
    names = [name for given in o.tasks or ("english",) for name in sets.get(given, [given])]
    for name in names:
        group_of(name)
    tasks = []
    for name in dict.fromkeys(names):
        if o.data is None:
            rows, where = rows_of_hub(name), f"the hub's {name}"
        else:
            path = o.data / f"{name}.jsonl"
            rows, where = rows_of_file(path), str(path)
        task = longbench(name, rows, where)
        if o.documents is not None:
            task = dataclasses.replace(task, documents=task.documents[: o.documents])
        tasks.append(task)
    if o.max_prompt_tokens is None:
        return tasks
    spans = cut.by_file(o.tokenizer) if o.tokenizer else cut.words
    return [cut.cut(task, o.max_prompt_tokens, spans) for task in tasks]


def _endpoint(o: Options, url: str) -> Any:
    from dsa_verify.gates.payload import Endpoint, Retry

    retry = Retry(patience_s=o.patience)
    return Endpoint(url, o.model or "", o.api, timeout_s=o.timeout, retry=retry)  # pyright: ignore[reportArgumentType]


def _listed(endpoint: Any) -> Any:
    """The endpoint with the model that its server lists, where none is named; also then, something must listen."""
    listed = served_model(endpoint.root)
    return endpoint if endpoint.model else dataclasses.replace(endpoint, model=listed)


def _work(o: Options) -> Path:
    return o.work or Path("dsa-verify-gate")


def _data_sha(tasks: Sequence[Task]) -> str:
    return sha(json.dumps([[task.name, [d.question.prompt_sha for d in task.documents]] for task in tasks]))


def _treatment(o: Options) -> frozenset[str]:
    return comparable.TREATMENT | frozenset(o.differs)


def _variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError(f"{text!r} is no NAME=VALUE.")
        found[name] = value
    return found


__all__ = ["Arm", "Options", "arrange", "provenance"]
