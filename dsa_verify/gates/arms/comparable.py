"""Whether two arms may be compared at all: same bytes, same tokens, nothing cached, the treatment alone differs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsa_verify.gates.records import Answer

TREATMENT = frozenset({"DSA_PREFILL_SPARSE"})
"""What the arms are meant to differ in."""
_OF_ITS_OWN = frozenset(
    {"paths", "sparse_prefill", "engine", "running", "waiting", "pid", "port", "url", "prefill_sparse", "log",
     "internal_states", "startup_time", "uptime", "last_gen_throughput", "command"}
)  # fmt: skip
"""Entries of a manifest that differ between two servers of one kind; `prefill_sparse` follows from the treatment."""


def answers_differ(dense: Mapping[str, Answer], other: Mapping[str, Answer], name: str = "sparse") -> list[str]:
    """Every kind of contradiction between two arms' answers, with its first case and how many there are.

    name: of the other arm.
    """
    found: dict[str, list[str]] = {}
    for key in dense.keys() | other.keys():
        for kind in _contradictions(dense.get(key), other.get(key), name):
            found.setdefault(kind, []).append(key)
    return [f"{kind} for {len(keys)} documents, the first is {min(keys)}." for kind, keys in sorted(found.items())]


def _contradictions(dense: Answer | None, other: Answer | None, name: str) -> Iterable[str]:
    if dense is None or other is None:
        yield f"the {'dense' if dense is None else name} arm was not asked, or has other documents,"
        return
    if dense.prompt_sha != other.prompt_sha:
        yield f"the dense and the {name} arm were given different prompts"
    if dense.payload_sha and other.payload_sha and dense.payload_sha != other.payload_sha:
        yield f"the dense and the {name} arm were sent different settings"
    counts = dense.prompt_tokens, other.prompt_tokens
    if None not in counts and counts[0] != counts[1]:
        yield f"the dense and the {name} arm counted different prompt tokens (a cut, or another template)"
    for arm, answer in (("dense", dense), (name, other)):
        if answer.cached_tokens:
            yield f"the {arm} arm took part of the prompt from a prefix cache, which skips prefill,"


def manifests_differ(dense: Mapping[str, Any], sparse: Mapping[str, Any], treatment: frozenset[str]) -> list[str]:
    """Entries in which the arms differ although they were not meant to."""
    one, two = dict(_flat(dense, treatment)), dict(_flat(sparse, treatment))
    reasons = []
    for name in sorted(one.keys() | two.keys()):
        left, right = one.get(name, "not stated"), two.get(name, "not stated")
        if left != right:
            reasons.append(f"the arms differ in {name}: {left!r:.60} in dense, {right!r:.60} in sparse.")
    return reasons


def _flat(manifest: Mapping[str, Any], treatment: frozenset[str], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in manifest.items():
        if name in _OF_ITS_OWN or name in treatment:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, treatment, f"{at}{name}.")
        else:
            yield f"{at}{name}", value


def sparsity(dense: Mapping[str, Any], sparse: Mapping[str, Any], trusted: bool) -> list[str]:
    """Why it is not proven that prefill was sparse in one arm and dense in the other; the servers count it."""
    counted, reasons = sparse.get("sparse_prefill"), []
    if counted is None and not trusted:
        reasons.append(
            "the sparse server does not say whether prefill was sparse (`sparse_prefill` in its server info), so both "
            "arms may be dense; make sure of it in its log and give --trust-sparse."
        )
    if counted == 0:
        reasons.append("the sparse arm never ran sparse prefill; its switch did not arrive, or every prompt was short.")
    if dense.get("sparse_prefill"):
        reasons.append("the dense arm ran sparse prefill; its switch did not arrive.")
    return reasons
