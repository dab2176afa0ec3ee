"""Peer mutants: entries name what exists, edits change one node, a place that is gone is an error, a full document."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from click import UsageError

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.contract import SURFACES
from dsa_verify.mutants.kernel import KernelWrapper
from dsa_verify.mutants.operators import OPERATORS
from dsa_verify.mutants.registry import KERNEL_MUTANTS
from dsa_verify.mutants.source import StaleMutant
from tools.peer_mutants.run import BEGIN, END, PeerResult, markdown, with_block
from tools.peer_mutants.table import TEMPLATE, PeerMutant, digest, load_table, raising_function, rewritten

PEER = load_table()
DOCUMENT = (Path(__file__).parents[2] / "docs" / "peers.md").read_text("utf-8")

SOURCE = """
def attend(scores, mask, limit):
    def bounded(at):
        return at < limit

    kept = jnp.where(mask & bounded(scores), scores, -jnp.inf)
    again = at < limit
    return jnp.sum(kept), store(kept, mode="drop")
"""


def mutant(function: str, text: str, operator: str, **more) -> PeerMutant:
    """A peer mutant of SOURCE."""
    node = digest(ast.parse(text, mode="eval").body)
    return PeerMutant("causal-bound-strict", "attend.py", function, operator, node, "dense_mla", (), **more)


def changed_lines(change: PeerMutant) -> list[str]:
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    return [new.strip() for old, new in zip(before, change.apply(SOURCE).splitlines(), strict=True) if old != new]


def identity(entry: PeerMutant) -> str:
    return f"{entry.name}-{entry.place}"


@pytest.mark.parametrize("entry", PEER.mutants, ids=identity)
def test_entry_names_what_exists(entry):
    assert entry.name in KERNEL_MUTANTS
    assert not isinstance(KERNEL_MUTANTS[entry.name].change, KernelWrapper)
    assert entry.operator == TEMPLATE or (entry.operator in OPERATORS and not entry.to)
    assert entry.surface in SURFACES
    assert entry.scenarios
    assert set(entry.scenarios) <= set(SCENARIOS)


def test_every_handwritten_mutant_is_in_the_table_or_left_out_with_a_reason():
    placed = {entry.name for entry in PEER.mutants}
    assert placed | set(PEER.left_out) == set(KERNEL_MUTANTS)
    assert not placed & set(PEER.left_out)
    assert all(PEER.left_out.values())
    assert len(PEER.mutants) == len(set(PEER.mutants))


def test_an_edit_changes_the_named_node_and_nothing_else():
    assert changed_lines(mutant("attend.bounded", "at < limit", "comparison flipped")) == ["return at <= limit"]
    assert changed_lines(mutant("attend", "at < limit", "comparison flipped")) == ["again = at <= limit"]


def test_choice_tells_the_changes_of_an_operator_apart():
    terms = mutant("attend", "mask & bounded(scores)", "mask term dropped")
    assert changed_lines(terms) == ["kept = jnp.where(mask, scores, -jnp.inf)"]
    assert changed_lines(replace(terms, choice=2)) == ["kept = jnp.where(bounded(scores), scores, -jnp.inf)"]


def test_a_template_is_filled_with_the_node_and_its_parts():
    node = ast.parse("top(scores[:, 0], k)", mode="eval").body
    filled = rewritten("x.args[1] + x.args[0].value[1] + x.func(x).shape[0]", node)
    assert filled is not None
    assert ast.unparse(filled) == "k + scores[1] + top(top(scores[:, 0], k)).shape[0]"


def test_an_empty_template_takes_an_argument_out():
    keyword = ast.parse("f(mode='drop')", mode="eval").body.keywords[0]  # pyright: ignore[reportAttributeAccessIssue]
    dropped = replace(mutant("attend", "0", TEMPLATE), node=digest(keyword))
    assert changed_lines(dropped) == ["return (jnp.sum(kept), store(kept))"]


@pytest.mark.parametrize(
    "stale",
    [
        mutant("attend", "at <= limit", "comparison flipped"),
        mutant("elsewhere", "at < limit", "comparison flipped"),
        mutant("attend", "at < limit", "wait dropped"),
        mutant("attend", "at < limit", "comparison flipped", choice=2),
    ],
    ids=["other text", "other function", "other operator", "too few"],
)
def test_a_place_that_is_gone_is_an_error(stale):
    with pytest.raises(StaleMutant, match=r"attend\.py.*moved on"):
        stale.apply(SOURCE)


def test_a_probe_raises_where_the_change_would_be():
    assert "kept = jnp.where(1 // 0, scores" in mutant("attend", "mask & bounded(scores)", "mask term dropped").apply(
        SOURCE, probe=True
    )
    assert ast.unparse(ast.parse(raising_function(SOURCE, "attend")).body[0].body[0]) == "1 // 0"  # pyright: ignore


def test_the_document_is_complete_for_the_table():
    expected = markdown(PEER, {entry: PeerResult("killed", "", "killed", "") for entry in PEER.mutants})
    block = DOCUMENT.partition(BEGIN)[2].partition(END)[0]
    assert without_results(block) == without_results(expected)
    rows = [line for line in block.splitlines() if line.count(" | ") >= 5][1:]
    assert all(result.startswith(("killed", "survived", "not run")) for row in rows for result in results(row))
    assert PEER.revision[:12] in DOCUMENT
    assert all(Path(test).name in DOCUMENT for test in (*PEER.tests, *PEER.not_on_cpu))


def results(row: str) -> list[str]:
    return row.removesuffix(" |").rsplit(" | ", 2)[1:]


def without_results(block: str) -> list[str]:
    return [line.rsplit(" | ", 2)[0] for line in block.splitlines() if line.startswith("|")]


def test_a_document_without_the_comments_is_refused():
    assert with_block(f"a\n{BEGIN}\nold\n{END}\nz\n", "new") == f"a\n{BEGIN}\nnew\n{END}\nz\n"
    with pytest.raises(UsageError, match="between"):
        with_block("a\n", "new")
