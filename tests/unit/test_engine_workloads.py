"""Two hundred random workloads: whatever an engine does with them, each request answers as if it were alone."""

from dataclasses import asdict

import numpy as np
import pytest

from dsa_verify.system.toy import ToyRunner, judge, play_toy
from dsa_verify.system.workloads import toy_workload

GROUP = 25


@pytest.mark.parametrize("first", range(0, 200, GROUP))
def test_answers_do_not_depend_on_company_chunks_pages_or_cache(first):
    totals = np.zeros(7, int)
    for seed in range(first, first + GROUP):
        work = toy_workload(seed)
        played = play_toy(work)
        judge(work, played)
        totals += np.array(list(asdict(played.report).values()))
    assert (totals > 0).all(), f"{dict(zip(asdict(played.report), totals, strict=True))}: nothing of one kind happened"


def test_every_static_shape_is_one_of_the_configured():
    seen = set()
    for seed in range(20):
        work = toy_workload(seed)
        runner = ToyRunner(work.page_size, work.pool_pages)
        play_toy(work, runner)
        shapes = {(len(step.tokens), step.seqs) for step in runner.steps}
        assert shapes <= {*work.config.decode_shapes, *work.config.extend_shapes}
        assert {step.page_table.shape[1] for step in runner.steps} == {work.config.pages_per_seq}
        seen |= {(step.mode, (step.kv_lens == 0).any(), (step.positions < 0).any()) for step in runner.steps}
    for mode in ("decode", "extend", "mixed"):
        assert (mode, True, True) in seen, f"no {mode} step had padding sequences and padding tokens"
    assert ("decode", False, False) in seen


def test_the_last_page_is_used_while_others_are_padded():
    """Else nothing here would notice a slot of -1 that wraps to the end of the pool."""
    used = 0
    for seed in range(20):
        work = toy_workload(seed)
        runner = ToyRunner(work.page_size, work.pool_pages)
        play_toy(work, runner)
        used += sum(
            (step.page_table == work.pool_pages - 1).any() and (step.positions < 0).any() for step in runner.steps
        )
    assert used > 20


@pytest.mark.parametrize("seed", range(5))
def test_same_requests_make_the_same_steps(seed):
    work = toy_workload(seed)
    runs = [ToyRunner(work.page_size, work.pool_pages) for _ in range(2)]
    for runner in runs:
        play_toy(work, runner)
    for one, other in zip(*(runner.steps for runner in runs), strict=True):
        assert all(np.array_equal(value, vars(other)[name]) for name, value in vars(one).items())
