"""What a gate is to run, from the command's options: arms and rule for the tasks that are asked for."""

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms import comparable
from dsa_verify.gates.arms.arm import EmbeddedArm
from dsa_verify.gates.arms.payload import Endpoint, Retry
from dsa_verify.gates.arms.served import ServedArm, StartedArm
from dsa_verify.gates.arms.server_info import with_model
from dsa_verify.gates.options import DENSE, SPARSE, GateOptions
from dsa_verify.gates.records import sha
from dsa_verify.gates.run import Gate
from dsa_verify.gates.statistics.rule import Rule
from dsa_verify.gates.tasks import by_name
from dsa_verify.gates.tasks.task import Task
from dsa_verify.mutants.broken_arm import mutant_for

EMBEDDED_TOPK, EMBEDDED_PAGE = 128, 16
NOT_YET = "http://127.0.0.1:1"
"""In place of the URL of a server that does not run yet."""
ONE_PAGE = {**SPARSE, "DSA_PAGE_TOPK": "1"}
_ANSWERING = ("urls", "command")
_ONLY_FOR = {
    "mutant": ("embedded",), "degraded_url": ("urls",), "dense_env": ("command",), "sparse_env": ("command",),
    "data": _ANSWERING, "max_prompt_tokens": _ANSWERING, "tokenizer": _ANSWERING, "work": _ANSWERING,
    "token_env": _ANSWERING, "gsm8k_tokens": _ANSWERING, "needle_tokens": ("embedded", *_ANSWERING),
    "tasks": ("embedded", *_ANSWERING), "documents": ("embedded", *_ANSWERING),
}  # fmt: skip
"""Options that some kinds of arms have no use for; given in vain they are refused."""
_KINDS = {
    "embedded": "the built-in model", "urls": "--dense-url and --sparse-url", "command": "--server-cmd",
    "samples": "recorded samples",
}  # fmt: skip


def arrange(options: GateOptions) -> Gate:
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


def _kind(o: GateOptions) -> str:
    given = {
        "urls": bool(o.dense_url or o.sparse_url), "command": bool(o.server_cmd),
        "samples": bool(o.dense_samples or o.sparse_samples),
    }  # fmt: skip
    chosen = [kind for kind, is_given in given.items() if is_given]
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


def _rule(o: GateOptions, controls: bool) -> Rule:
    names = ("alpha", "macro_margin", "group_margin", "task_margin", "seed")
    given = {name: value for name in names if (value := getattr(o, name)) is not None}
    if o.task_margin is not None:
        given["task_limit"] = max(Rule.task_limit, o.task_margin)
    if o.alpha is not None:
        given["alarm_alpha"] = min(Rule.alarm_alpha, o.alpha / 5)
    return Rule(**given, controls=controls)


def _embedded(o: GateOptions) -> Gate:
    mutant = mutant_for(o.mutant, o.kernels).name if o.mutant else None
    tasks = by_name.generated_here(o)

    def arm(name: str, environment: Mapping[str, str], budget: int = EMBEDDED_TOPK) -> EmbeddedArm:
        return EmbeddedArm(name, environment, budget, o.kernels)

    controls = o.controls is not False
    return Gate(
        tasks, _rule(o, controls),
        dense=arm("dense", DENSE), sparse=dataclasses.replace(arm("sparse", SPARSE), mutant=mutant),
        same=arm("same", DENSE) if controls else None,
        degraded=arm("degraded", ONE_PAGE, EMBEDDED_PAGE) if controls else None,
        active_tokens=EMBEDDED_TOPK + EMBEDDED_PAGE, repeats=o.repeats,
    )  # fmt: skip


def _urls(o: GateOptions) -> Gate:
    assert o.dense_url and o.sparse_url
    urls = [url for url in (o.dense_url, o.sparse_url, o.degraded_url) if url]
    endpoints = {url: with_model(_endpoint(o, url)) for url in urls}
    tasks = by_name.asked_for(o)
    work, data = _work(o), _data_sha(tasks)

    def arm(name: str, url: str) -> ServedArm:
        return ServedArm(name, endpoints[url], work / f"{name}.jsonl", o.concurrency, data)

    controls = bool(o.controls)
    return Gate(
        tasks, _rule(o, controls), arm("dense", o.dense_url), arm("sparse", o.sparse_url),
        o.index_topk + o.page_size,
        same=arm("same", o.dense_url) if controls else None,
        degraded=arm("degraded", o.degraded_url) if o.degraded_url else None,
        repeats=o.repeats, trusted=o.trust_sparse, treatment=_treatment(o),
    )  # fmt: skip


def _command(o: GateOptions) -> Gate:
    from dsa_verify.gates.arms.server_command import ServerCommand

    assert o.server_cmd
    dense, sparse = _variables(o.dense_env) or DENSE, _variables(o.sparse_env) or SPARSE
    plain = ServerCommand(o.server_cmd, {})
    tasks = by_name.asked_for(o)
    work, data = _work(o), _data_sha(tasks)

    def arm(name: str, environment: Mapping[str, str]) -> StartedArm:
        server = dataclasses.replace(plain, environment=environment)
        journal = work / f"{name}.jsonl"
        return StartedArm(name, _endpoint(o, NOT_YET), journal, o.concurrency, data, server=server)

    controls = bool(o.controls)
    treatment = _treatment(o) | {name for name in dense.keys() | sparse.keys() if dense.get(name) != sparse.get(name)}
    return Gate(
        tasks, _rule(o, controls), arm("dense", dense), arm("sparse", sparse), o.index_topk + o.page_size,
        same=arm("same", dense) if controls else None,
        degraded=arm("degraded", {**sparse, **ONE_PAGE}) if controls else None,
        looks=False, repeats=o.repeats, trusted=o.trust_sparse, treatment=frozenset(treatment),
    )  # fmt: skip


def _samples(o: GateOptions) -> Gate:
    from dsa_verify.gates.arms.samples import recorded

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


def _endpoint(o: GateOptions, url: str) -> Endpoint:
    token = os.environ.get(o.token_env, "") if o.token_env else None
    if token == "":
        raise ConfigError(
            f"--token-env {o.token_env}: that variable is empty or not set; export the server's token in it."
        )
    return Endpoint(url, o.model or "", o.api, timeout_s=o.timeout, retry=Retry(patience_s=o.patience), token=token)


def _work(o: GateOptions) -> Path:
    return o.work or Path("dsa-verify-gate")


def _data_sha(tasks: Sequence[Task]) -> str:
    return sha(json.dumps([[task.name, [d.question.prompt_sha for d in task.documents]] for task in tasks]))


def _treatment(o: GateOptions) -> frozenset[str]:
    return comparable.TREATMENT | frozenset(o.differs)


def _variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError(f"{text!r} is no NAME=VALUE.")
        found[name] = value
    return found
