"""The real decoder behind the engine, under every wiring: answers are the reference's, whatever the engine does."""

import numpy as np
import pytest

from dsa_verify.engine import Finished, Report
from dsa_verify.system import survey as survey_module
from dsa_verify.system.judge import Judged, judged
from dsa_verify.system.reference import _best
from dsa_verify.system.survey import differences, survey
from dsa_verify.system.wirings import FAST, WIRINGS
from dsa_verify.system.workloads import Played, Wrong, decoder_workload, small_workload

WORKLOADS = 10
MODES = {"decode", "extend", "mixed"}


@pytest.mark.parametrize("name", FAST)
def test_requests_get_the_answers_that_they_get_alone(name):
    (line,) = survey(range(WORKLOADS), [name], tell=lambda line: None)
    assert line.workloads == WORKLOADS
    assert set(line.modes) == MODES, "a path of this wiring never ran"
    assert all(line.engine.values()), f"{line.engine}: nothing of one kind happened"
    assert 100 * line.excused <= line.looks  # choices that hang on the last bit are rare, or excuses hide a fault
    assert (line.same > 0) == (WIRINGS[name].twin is not None)


@pytest.mark.parametrize("name", sorted(set(WIRINGS) - set(FAST)))
def test_pallas_kernels_give_the_same_answers(name):
    """Only the one that compiles fastest runs mixed steps here; `survey` has them in all."""
    mixed = name == "pallas-by-query"
    work, wiring = small_workload(mixed), WIRINGS[name]
    found = judged(wiring, work)
    assert found.rejected == {} and found.excused == 0
    assert set(found.modes) == (MODES if mixed else MODES - {"mixed"})
    assert found.played is not None and found.played.report.hit_tokens > 0
    assert wiring.twin is not None and differences(found, judged(wiring.twin, work)) == ([], 0)


def test_every_switch_of_the_backend_is_in_some_wiring():
    backends = [wiring.backend for wiring in WIRINGS.values()]
    for switch in ("page_topk", "indexer_kernel", "indexer_kernel_prefill", "prefill_sparse", "prefill_qblock",
                   "kernels", "granularity"):  # fmt: skip
        assert len({getattr(backend, switch) for backend in backends}) > 1, switch


def test_other_mathematics_give_other_answers():
    """What a wiring attends matters here, so that a comparison with the wrong one would be noticed."""
    work = decoder_workload(1)
    plays = {name: judged(WIRINGS[name], work) for name in ("exact-tokens", "dense-prefill", "sparse-prefill-budget")}
    for one in plays.values():
        assert all(differences(one, other)[0] for other in plays.values() if other is not one)


def end(*tokens: int, gap: float = 1.0) -> Judged:
    gaps = tuple(gap for _ in tokens)
    return Judged(played=Played(Report(), ends={0: Finished(9, 0, "length", tokens, gaps)}), budget=1e-4)


def test_only_near_ties_are_excused():
    assert differences(end(1, 2), end(1, 2)) == ([], 0)
    assert differences(end(1, 2), end(1, 3, gap=1e-4)) == ([], 1)
    assert differences(end(1, 2), end(1, 3))[0] == ["request 0 answered (1, 2), under the twin (1, 3)"]
    assert differences(end(1, 2), end(1, gap=1e-9))[0], "an answer that is too short is no near-tie"


def test_margin_of_a_choice_is_the_gap_to_the_first_that_is_left_out():
    scores = np.array(
        [[4.0, 1.0, 2.0, -np.inf], [0.0, 0.0, 3.0, -1.0], [5.0, 5.0, 5.0, 5.0], [1, -np.inf, -np.inf, -np.inf]]
    )
    kept, margin = _best(scores, 2)
    assert kept.tolist() == [
        [True, False, True, False],
        [True, False, True, False],
        [True, True, False, False],
        [True, False, False, False],
    ]
    assert margin.tolist() == [0.25, np.inf, 0.0, np.inf]  # two zeros are no close call


def test_survey_ends_at_the_first_rejection(monkeypatch):
    monkeypatch.setattr(survey_module, "judged", lambda *_: Judged({"paths": "layer 0 ran dense_mla"}))
    with pytest.raises(Wrong, match="dense, workload 3: paths: layer 0 ran dense_mla"):
        survey([3], ["dense"])
