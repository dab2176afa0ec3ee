"""A record's oracle part: what one scenario asks of one surface, and what the answer is; no kernel runs.

    recipe      how the batch is built: bucket, seed, requests (`kv_len:q_len`), ...
    inputs      dtype, shape and SHA-256 of every array that the surface takes
    selection   surfaces that select: each token's row of candidates, see `canonical`
    margin      how far the last candidate kept is from the first left out, see `margin`; not compared
    outputs     surfaces that compute rows: fingerprints of output and lse, or of new index keys, see `fingerprint`
    cache_kv    surfaces that write: digest of the pool after the step, and of each page that it wrote
    budget      sums of the error budgets, so that no tolerance is loosened unseen

Digests are for what is exact: random streams cast to the model's dtype, integers, copies. No BLAS sum enters them but
through the choice of `topk_pages` by an `indexer` scenario. There, as in every selection, the scores of the last
candidate kept and of the first one left out are equal zeros or orders of magnitude farther apart than float64 rounds,
so that the choice is the same on every machine (tested).
"""

import hashlib
from collections.abc import Mapping

import numpy as np

from dsa_verify import oracle
from dsa_verify.batch import Batch, Request, Scenario
from dsa_verify.checks.tolerance import attention_budget, key_budget, score_band
from dsa_verify.contract import Promise, Surface
from dsa_verify.evidence import Attention, Expected, ScoredCandidates
from dsa_verify.golden.canonical import SCHEMA, gaps
from dsa_verify.golden.fingerprint import fingerprint, number

_HEX = 32
"""Digits kept of a SHA-256: enough against accidents; a person who wants to deceive edits the code."""


def make(surface: Surface, scenario: Scenario, batch: Batch) -> dict[str, object]:
    """The oracle part of a record. `batch` is the scenario's, see `verify.batch_of`."""
    return describe(surface, scenario, batch, oracle.expected(surface.name, batch))


def describe(surface: Surface, scenario: Scenario, batch: Batch, expected: Expected) -> dict[str, object]:
    """The oracle part of a record for a given answer."""
    record: dict[str, object] = {
        "schema": SCHEMA,
        "surface": surface.name,
        "scenario": scenario.name,
        "recipe": recipe(scenario),
        "inputs": {name: digest(batch.operand(name, name in surface.pools)) for name in surface.arrays},
    }
    if expected.selection is not None:
        chosen = expected.selection
        band = score_band(chosen, Promise())[chosen.value > -np.inf]
        record["selection"] = [gaps(row) for row in chosen.best.tolist()]
        record["margin"] = margin(chosen, equal_keys=expected.keys is not None)
        record["budget"] = {"band": number(band.sum())} | _of_keys(batch, expected)
    if expected.attention is not None:
        record |= _attention(surface, batch, expected.attention)
    if expected.keys is not None:
        single = key_budget(expected.keys, "float32")
        record["outputs"] = {"index keys": fingerprint(expected.keys.value, single)}
    if expected.cache_kv is not None and surface.writes:
        record["cache_kv"] = cache(batch, expected.cache_kv)
    return record


def _of_keys(batch: Batch, expected: Expected) -> dict[str, float]:
    """The sum of the budgets of computed index keys, where there are some."""
    if expected.keys is None:
        return {}
    return {"keys": number(key_budget(expected.keys, batch.index_cache.dtype)[batch.real].sum())}


def _attention(surface: Surface, batch: Batch, exact: Attention) -> dict[str, object]:
    width = batch.ql_nope.shape[-1] + batch.q_pe.shape[-1]
    single = attention_budget(exact, "float32", width, Promise())
    budget = attention_budget(exact, batch.ql_nope.dtype, width, Promise())
    outputs = {"out": fingerprint(exact.out, single.element)}
    if "lse" in surface.outputs:
        outputs["lse"] = fingerprint(exact.lse, single.lse)
    sums = {"element": budget.element.sum(), "gain": budget.gain.sum(), "lse": budget.lse.sum()}
    sums["batch_gain"] = budget.batch_gain
    return {"outputs": outputs, "budget": {name: number(value) for name, value in sums.items()}}


def margin(chosen: ScoredCandidates, equal_keys: bool = False) -> float | None:
    """Smallest relative gap between the last score kept and the first left out; None where no row leaves any out.

    Ties of zeros, of scores that no dtype rounds, and of `equal_keys`, which the oracle of a whole indexer scores once,
    are the same on every machine and do not count.
    """
    budget, least = chosen.best.shape[1], np.inf
    for value, magnitude in zip(chosen.value, chosen.magnitude, strict=True):
        order = np.argsort(-value, kind="stable")[budget - 1 : budget + 1]
        if len(order) < 2 or value[order[1]] == -np.inf:
            continue
        last, first = value[order]
        if last != first or not (chosen.exact or equal_keys or last == 0.0):
            least = min(least, (last - first) / magnitude[order].max())
    return number(least, 3) if np.isfinite(least) else None


def recipe(scenario: Scenario) -> dict[str, object]:
    """What a scenario's batch is built from, for a reader of differences."""
    bucket, values = scenario.bucket, scenario.values
    settings = [f"{name}={value}" for name, value in sorted(vars(values).items()) if value is not None]
    return {
        "bucket": bucket.name,
        "dtype": bucket.dtype,
        "index_topk": bucket.index_topk,
        "page_size": bucket.page_size,
        "requests": " ".join(map(_request, scenario.padded)),
        "seed": scenario.seed,
        "selection": scenario.selection,
        "shape": bucket.shape,
        "table": scenario.table,
        "values": " ".join([type(values).__name__.lower(), *settings]),
    }


def _request(request: Request) -> str:
    shared = f"/{request.shared_tokens}of{request.shares}" if request.shares is not None else ""
    return f"{request.kv_len}:{request.q_len}{shared}"


def digest(array: np.ndarray) -> str:
    """dtype, shape and digest of an array's bytes: `int32[5] 0f3a...`."""
    shape = ",".join(map(str, array.shape))
    return f"{array.dtype}[{shape}] {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:_HEX]}"


def cache(batch: Batch, pool: np.ndarray) -> Mapping[str, object]:
    """Digest of the pool, and of each page that the step wrote, so that a change has a place."""
    written = np.unique(batch.out_cache_loc[batch.real] // batch.page_size)
    return {"pool": digest(pool), "written": {str(page): digest(pool[page]).split()[1][:8] for page in written}}
