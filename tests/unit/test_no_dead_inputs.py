"""No dead inputs: every input array of every surface, changed, moves the oracle's result.

An input whose change moves nothing cannot tell a kernel that reads it wrongly from one that reads it right. Arrays are
changed for all requests at once, and the result of each request must move; requests without new tokens have none. Of
selections it is asked that some request's moves: a query that keeps two pages of five may keep the same two by chance.
`sparse_mla_prefill_qblock` has the inputs and the meaning of `sparse_mla_prefill`, and the long scenarios take long, so
each of them looks at one attention surface.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from dsa_verify import oracle
from dsa_verify.batch import Batch
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks.bits import differing_rows
from dsa_verify.contract import SURFACES, Surface
from dsa_verify.evidence import Expected
from dsa_verify.oracle.expected import allowed
from dsa_verify.run.verify import batch_of

QUICK = [scenario for scenario in SCENARIOS.values() if scenario.tier == "quick"]
LONG = {"long-context-p128-bf16": "dense_mla", "document-long-p128-bf16": "sparse_mla_prefill"}
built = cache(batch_of)


def forced(batch: Batch, **changes: np.ndarray) -> Batch:
    """A batch that may contradict itself, as one with only its page table changed does."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(Batch)}
    weights = {name: changes.pop(name) for name in vars(batch.indexer) if name in changes}
    values["indexer"] = dataclasses.replace(batch.indexer, **weights)
    made = object.__new__(Batch)
    vars(made).update({**values, **changes})
    return made


def relaid(batch: Batch, surface: Surface, **lengths: np.ndarray) -> Batch:
    """Other lengths; positions follow where the surface derives them, and selections stay within their sequence."""
    kv_lens, cu = lengths.get("kv_lens", batch.kv_lens), lengths.get("cu_q_lens", batch.cu_q_lens)
    positions, topk = np.full_like(batch.positions, -1), batch.topk_pages.copy()
    for seq, kv_len in enumerate(kv_lens):
        rows = np.arange(cu[seq], cu[seq + 1])
        positions[rows] = np.maximum(kv_len - cu[seq + 1] + rows, -1)
        topk[rows] = np.where(topk[rows] * batch.page_size < kv_len, topk[rows], -1)
    given = {} if "positions" in surface.arrays else {"positions": positions}
    return forced(batch, **lengths, **given, topk_pages=topk)


def other_selection(batch: Batch, surface: Surface) -> Batch:
    """Every query selects one page less; one that selects nothing, or its own page only, selects another one."""
    topk = batch.topk_pages.copy()
    for token in np.flatnonzero(batch.real):
        own = batch.positions[token] // batch.page_size
        chosen = [page for page in topk[token] if page >= 0]
        spare = [page for page in chosen if page != own] if surface.decode_only else chosen
        if spare:
            chosen.remove(spare[0])
        else:
            chosen = [0]
        topk[token] = np.pad(np.array(chosen, np.int32), (0, len(topk[token]) - len(chosen)), constant_values=-1)
    return forced(batch, topk_pages=topk)


def unmapped(batch: Batch, surface: Surface) -> Batch:
    """Every page table entry in use points at page 0, which holds zeros: poison would reach results through 0 * NaN."""
    table = batch.page_table.copy()
    for seq, kv_len in enumerate(batch.kv_lens):
        table[seq, : -(-int(kv_len) // batch.page_size)] = 0
    caches = {name: getattr(batch, name).copy() for name in ("cache_kv", "index_cache")}
    for pool in caches.values():
        pool[0] = 0
    return forced(batch, page_table=table, **caches)


def by(name: str, *changes: Callable[[np.ndarray], np.ndarray]) -> tuple[Callable[[Batch, Surface], Batch], ...]:
    """Changes of the values of one array."""
    return tuple(lambda batch, surface, f=f: forced(batch, **{name: f(batch.operand(name))}) for f in changes)


CHANGES: dict[str, tuple[Callable[[Batch, Surface], Batch], ...]] = {
    **{name: by(name, np.negative) for name in ("ql_nope", "q_pe", "new_c_kv", "new_k_pe", "cache_kv")},
    **{name: by(name, np.negative) for name in ("index_q", "index_weights", "index_cache")},
    **{name: by(name, np.negative) for name in ("hidden", "q_lora", "wq_b", "wk", "weights_proj")},
    **{name: by(name, np.negative) for name in ("k_norm", "k_norm_bias")},
    "kv_lens": (
        lambda batch, surface: relaid(batch, surface, kv_lens=batch.kv_lens // 2),
        lambda batch, surface: relaid(batch, surface, kv_lens=batch.kv_lens // 8),
    ),
    # A chunk whose last query selects nothing does not miss it, but misses all.
    "cu_q_lens": (
        lambda batch, surface: relaid(batch, surface, cu_q_lens=np.maximum(batch.cu_q_lens - 1, 0)),
        lambda batch, surface: relaid(batch, surface, cu_q_lens=np.zeros_like(batch.cu_q_lens)),
    ),
    "page_table": (unmapped,),
    "topk_pages": (other_selection,),
    # Half a position may still be behind all selected pages; position 0 is not.
    "positions": by("positions", lambda x: np.where(x >= 0, x // 2, -1), lambda x: np.minimum(x, 0)),
    "out_cache_loc": by("out_cache_loc", lambda x: np.where(x >= 0, x % 16, -1)),
}
"""Changes of each input, subtle ones first; it is dead when none of them moves anything."""


@dataclass(frozen=True)
class Excuse:
    """Why some inputs of a request can move nothing, and when: a condition on what the request may attend or choose."""

    reason: str
    inputs: tuple[str, ...]
    holds: Callable[[Surface, Batch, int], bool]


def attended(surface: Surface, batch: Batch, seq: int) -> np.ndarray:
    """bool[queries, kv_len]; everything where the surface does not attend."""
    if not surface.attends:
        return np.ones((int(batch.q_lens[seq]), int(batch.kv_lens[seq])), bool)
    return allowed(surface.name, batch, seq)


def history(batch: Batch, seq: int) -> int:
    return int(batch.kv_lens[seq] - batch.q_lens[seq])


def everything_chosen(surface: Surface, batch: Batch, seq: int) -> bool:
    if surface.writes:  # it tells its keys and scores too
        return False
    last = int(batch.positions[batch.rows(seq)].max())
    return last // batch.page_size < batch.k_pages if surface.name == "index_page_topk" else last < batch.index_topk


def lowest_chosen(surface: Surface, batch: Batch, seq: int) -> bool:
    if surface.name != "index_page_topk":
        return False
    chosen = np.sort(oracle.selection(batch, pages=True).best[batch.rows(seq)], axis=1)
    return bool((chosen == np.arange(batch.k_pages)).all())


EXCUSES = [
    Excuse(
        "softmax over at most one key is the same whatever the query",
        ("ql_nope", "q_pe"),
        lambda surface, batch, seq: bool((attended(surface, batch, seq).sum(axis=1) <= 1).all()),
    ),
    Excuse(
        "no token of an earlier step is attended or kept",
        ("cache_kv",),
        lambda surface, batch, seq: not attended(surface, batch, seq)[:, : history(batch, seq)].any(),
    ),
    Excuse(
        "no token of an earlier step has a key",
        ("index_cache",),
        lambda surface, batch, seq: surface.writes and not history(batch, seq),
    ),
    Excuse(
        "no query of the request selects anything, and where it writes is given",
        ("positions", "cu_q_lens", "page_table"),
        lambda surface, batch, seq: not attended(surface, batch, seq).any(),
    ),
    Excuse(
        "the only page is the new token's own, which a decode attends anyway",
        ("topk_pages",),
        lambda surface, batch, seq: surface.decode_only and batch.kv_lens[seq] <= batch.page_size,
    ),
    Excuse(
        "the budget covers the whole prefix, which is chosen whatever the scores",
        ("index_q", "index_weights", "index_cache", "page_table"),
        lambda surface, batch, seq: surface.selects and everything_chosen(surface, batch, seq),
    ),
    Excuse(
        "the only key is at position 0, which every position sees",
        ("positions",),
        lambda surface, batch, seq: int(batch.kv_lens[seq]) == 1,
    ),
    Excuse(
        "every page holds the best of a handful of scores, and the lowest pages win every tie",
        ("page_table",),
        lowest_chosen,
    ),
]


def scores(answer: Expected) -> np.ndarray:
    """f64[tokens, candidates], with a number in the place of what is not causal."""
    assert answer.selection is not None
    return np.nan_to_num(answer.selection.value, neginf=-1e9)


def moved(surface: Surface, batch: Batch, seq: int, before: Expected, after: Expected) -> bool:
    """Whether the result of one request differs: its rows, and what its slots hold."""
    rows = batch.rows(seq)
    if surface.selects and surface.writes:
        assert before.keys is not None and after.keys is not None
        told = [(answer.keys.value[rows], scores(answer)[rows]) for answer in (before, after)]
        # As below: half of double precision, the oracle beside itself.
        return not all(np.allclose(a, b, rtol=1e-8, atol=1e-8) for a, b in zip(*told, strict=True))
    if surface.selects:
        assert before.selection is not None and after.selection is not None
        return not np.array_equal(np.sort(before.selection.best[rows]), np.sort(after.selection.best[rows]))
    # Half of double precision: another order of the oracle's own sums is no movement.
    if surface.attends and not np.allclose(before.attention.out[rows], after.attention.out[rows], rtol=1e-8, atol=1e-8):
        return True
    # Where the surface attends, the history in the cache must be seen in the output, not in the cache passed on.
    slots = batch.out_cache_loc[rows] if surface.attends else batch.slots(seq)
    flat = [answer.cache_kv.reshape(batch.owned.size, -1)[slots] for answer in (before, after)]
    return bool(differing_rows(*flat).any())


def dead_inputs(surface: Surface, batch: Batch) -> dict[str, bool]:
    """Inputs that are dead or excused, with their requests; whether they are both, as they should be."""
    requests = [seq for seq in range(batch.seqs) if batch.kv_lens[seq] and batch.q_lens[seq]]
    groups = [requests] if surface.selects and not surface.writes and requests else [[seq] for seq in requests]
    before = oracle.expected(surface.name, batch)
    found = {}
    for name in surface.arrays:
        still = list(groups)
        for change in CHANGES[name]:
            if still:
                after = oracle.expected(surface.name, change(batch, surface))
                still = [group for group in still if not any(moved(surface, batch, s, before, after) for s in group)]
        for group in groups:
            why = [excuse for excuse in EXCUSES if name in excuse.inputs]
            excused = any(all(excuse.holds(surface, batch, seq) for seq in group) for excuse in why)
            if group in still or excused:
                found[f"{name} of request {group}"] = excused and group in still
    return found


def looked_at(scenario) -> list[Surface]:
    decode = built(scenario).mode == "decode"
    names = [name for name in SURFACES if name != "sparse_mla_prefill_qblock"]
    if scenario.name in LONG:
        names = [name for name in names if not SURFACES[name].attends or name == LONG[scenario.name]]
    return [SURFACES[name] for name in names if decode or not SURFACES[name].decode_only]


@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.name)
def test_every_input_moves_the_result_of_every_request(scenario):
    """Fails for a dead input without an excuse, and for an excuse of an input that is alive."""
    found = {surface.name: dead_inputs(surface, built(scenario)) for surface in looked_at(scenario)}
    wrong = [f"{surface}: {name}" for surface, dead in found.items() for name, excused in dead.items() if not excused]
    assert not wrong, wrong


def test_only_a_step_of_nothing_but_padding_has_no_result():
    empty = {s.name for s in QUICK if not (built(s).q_lens[built(s).kv_lens > 0] > 0).any()}
    assert empty == {"padding-everything-p16-f32"}


def test_every_excuse_is_needed():
    short = [s for s in QUICK if s.name not in LONG]
    for excuse in EXCUSES:
        for name in excuse.inputs:
            assert any(
                excuse.holds(surface, built(scenario), seq)
                for scenario in short
                for surface in looked_at(scenario)
                if name in surface.arrays
                for seq in range(built(scenario).seqs)
                if built(scenario).kv_lens[seq] and built(scenario).q_lens[seq]
            ), (excuse.reason, name)


def test_query_block_surface_has_the_inputs_and_the_meaning_of_the_per_query_one():
    one, other = SURFACES["sparse_mla_prefill"], SURFACES["sparse_mla_prefill_qblock"]
    assert one.arrays == other.arrays
    batch = built(SCENARIOS["masked-rows-p16-f32"])
    answers = [oracle.expected(surface.name, batch).attention.out for surface in (one, other)]
    assert np.array_equal(*answers)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q_pe", lambda batch: {"q_pe": np.zeros_like(batch.q_pe)}),
        ("cache_kv", lambda batch: {"cache_kv": np.where(batch.cache_kv == batch.cache_kv, 0, batch.cache_kv)}),
        ("topk_pages", lambda batch: {"ql_nope": batch.ql_nope * 0, "q_pe": batch.q_pe * 0, "topk_pages": None}),
    ],
)
def test_dead_input_is_named(name, change):
    batch = built(SCENARIOS["several-unequal-p16-f32"])
    surface = SURFACES["sparse_mla_prefill"]
    changes = change(batch)
    if changes.get("topk_pages", 0) is None:  # all rows alike, so that it does not matter which page is attended
        alike = np.full_like(batch.cache_kv, 0.5)
        changes = {**changes, "topk_pages": batch.topk_pages, "cache_kv": alike}
        changes |= {"new_c_kv": np.full_like(batch.new_c_kv, 0.5), "new_k_pe": np.full_like(batch.new_k_pe, 0.5)}
    dead = {
        found.split()[0] for found, excused in dead_inputs(surface, forced(batch, **changes)).items() if not excused
    }
    assert name in dead
