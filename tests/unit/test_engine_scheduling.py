"""What an engine decides, told by its events: admission, queueing, chunks, eviction, preemption, abort, ends."""

from dataclasses import asdict

import pytest

from dsa_verify.engine import (
    Admitted,
    Engine,
    EngineConfig,
    Evicted,
    Finished,
    GenerationRequest,
    Preempted,
    Queued,
    Token,
)
from dsa_verify.errors import EngineError, RequestError
from dsa_verify.system.toy import VOCAB, ToyRunner, expected

PAGE = 4


def engine(pool_pages=33, **settings):
    defaults = {"max_running": 4, "chunk_tokens": 8, "pages_per_seq": 8}
    return Engine(ToyRunner(PAGE, pool_pages), EngineConfig(**defaults | settings))


def ask(length, new=4, start=0, **more):
    return GenerationRequest(tuple(n % VOCAB for n in range(start, start + length)), new, **more)


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def modes(e):
    return [step.mode for step in e.runner.steps]


def q_lens(e):
    return [step.q_lens[step.kv_lens > 0].tolist() for step in e.runner.steps]


def test_long_prompt_is_computed_in_chunks_beside_decodes():
    e = engine()
    e.generate([ask(3, new=5), ask(20, new=2, start=30)])
    assert q_lens(e) == [[3, 5], [1, 8], [1, 7], [1, 1], [1]]
    assert modes(e) == ["extend", "mixed", "mixed", "decode", "decode"]


def test_decodes_wait_for_chunks_where_they_may_not_share_a_step():
    e = engine(mixed=False)
    e.generate([ask(3, new=3), ask(20, new=2, start=30)])
    assert q_lens(e) == [[3, 5], [8], [7], [1, 1], [1]]
    assert modes(e) == ["extend", "extend", "extend", "decode", "decode"]


def test_full_hit_computes_one_token():
    e = engine()
    cold, warm = e.generate([ask(9)]), e.generate([ask(9)])
    assert cold[0].tokens == warm[0].tokens == expected(ask(9))
    assert e.report.hit_tokens == 8
    assert e.report.computed_tokens == (9 + 3) + (1 + 3)


def test_answer_is_part_of_the_cached_prefix():
    e = engine()
    answer = e.generate([ask(9, new=4)])[0].tokens
    again = GenerationRequest((*ask(9).prompt, *answer), 1)
    # 12 tokens were computed: the last one of the answer never was.
    assert of(Admitted, [e.submit(again), *e.stream()])[0].hit_tokens == 12


def test_nothing_is_shared_without_the_cache():
    e = engine(prefix_cache=False)
    e.generate([ask(9)])
    e.generate([ask(9)])
    assert e.report.hit_tokens == 0
    assert e.scheduler.pool.free == e.scheduler.pool.size


def test_who_does_not_fit_waits_and_nobody_overtakes():
    e = engine(pool_pages=6)
    for request in (ask(12, new=3), ask(12, new=3, start=20), ask(2, new=1, start=40)):
        e.submit(request)
    events = list(e.stream())
    assert of(Queued, events)[0] == Queued(0, 1, "pages", needed=3, available=2)
    assert [event.request for event in of(Admitted, events)] == [0, 1, 2]
    assert of(Admitted, events)[1].step == of(Finished, events)[0].step + 1


def test_place_among_the_running_is_waited_for():
    e = engine(max_running=1)
    e.submit(ask(3, new=2))
    e.submit(ask(3, new=2, start=20))
    events = list(e.stream())
    assert of(Queued, events) == [Queued(0, 1, "running", needed=1, available=0)]
    assert [(event.step, event.request) for event in of(Admitted, events)] == [(0, 0), (2, 1)]


def test_arrival_is_a_step():
    e = engine()
    e.submit(ask(3, new=1, arrival=5))
    events = list(e.stream())
    assert [event.step for event in of(Admitted, events)] == [5]
    assert len(e.runner.steps) == 1


def test_request_that_can_never_fit_is_refused_with_both_numbers():
    with pytest.raises(RequestError, match=r"needs 9 pages of 4, but a request can have at most 8"):
        engine().submit(ask(30, new=4))
    with pytest.raises(RequestError, match=r"needs 6 pages of 4, but .* at most 5: .* the pool has 5 pages"):
        engine(pool_pages=6).submit(ask(20, new=2))
    assert engine(pool_pages=6).generate([ask(20, new=1)])[0].tokens == expected(ask(20, new=1))


@pytest.mark.parametrize("wrong", [{"prompt": ()}, {"max_new_tokens": 0}])
def test_empty_request_is_refused(wrong):
    with pytest.raises(RequestError):
        GenerationRequest(**{"prompt": (1,), "max_new_tokens": 1} | wrong)


def test_token_outside_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match="not in the vocabulary"):
        engine().submit(GenerationRequest((VOCAB,), 1))


def test_cache_is_evicted_before_anyone_is_preempted():
    e = engine(pool_pages=7)
    e.generate([ask(12, new=1)])
    e.submit(ask(10, new=8, start=20))
    events = list(e.stream())
    assert sum(event.pages for event in of(Evicted, events)) == 2
    assert not of(Preempted, events)


def test_youngest_gives_way_and_loses_no_token():
    e = engine(pool_pages=7)
    requests = [ask(8, new=10), ask(8, new=10, start=20)]
    for request in requests:
        e.submit(request)
    events = list(e.stream())
    assert {event.request for event in of(Preempted, events)} == {1}
    for number, request in enumerate(requests):
        assert tuple(event.token for event in of(Token, events) if event.request == number) == expected(request)
    assert e.report.preemptions == len(of(Preempted, events))


@pytest.mark.parametrize("step", range(6))
def test_abort_frees_pages_at_any_time(step):
    e = engine(max_running=2)
    doomed = e.submit(ask(20, new=8))
    other = e.submit(ask(9, new=2, start=30))
    waiting = e.submit(ask(5, new=9, start=50))
    events = [event for _ in range(step) for event in e.step()]
    assert e.abort(doomed) and e.abort(waiting)
    assert not e.abort(doomed)
    e.check()
    events += e.stream()
    ends = {event.request: event for event in of(Finished, events)}
    assert [ends[number].reason for number in (doomed, other, waiting)] == ["abort", "length", "abort"]
    assert ends[other].tokens == expected(ask(9, new=2, start=30))
    assert len(e.scheduler.cache.pages()) + e.scheduler.pool.free == e.scheduler.pool.size


def test_stop_token_ends_the_answer_and_is_part_of_it():
    full = expected(ask(9, new=6))
    end = engine().generate([ask(9, new=6, stop=(full[2],))])[0]
    assert (end.reason, end.tokens) == ("stop", full[:3])
    assert len(end.gaps) == 3 and all(gap is not None and gap >= 0 for gap in end.gaps)


def test_stream_takes_requests_while_it_runs():
    e = engine()
    e.submit(ask(9))
    ends = []
    for event in e.stream():
        if isinstance(event, Finished):
            ends.append(event.tokens)
            if len(ends) == 1:
                e.submit(ask(6, start=20))
    assert ends == [expected(ask(9)), expected(ask(6, start=20))]


def test_report_counts_steps_tokens_and_events():
    e = engine()
    e.generate([ask(3, new=5), ask(20, new=2, start=30)])
    assert asdict(e.report) == {
        "decode_steps": 2,
        "extend_steps": 1,
        "mixed_steps": 2,
        "computed_tokens": 3 + 4 + 20 + 1,
        "hit_tokens": 0,
        "evicted_pages": 0,
        "preemptions": 0,
    }


class Broken(ToyRunner):
    def __init__(self, spoil):
        super().__init__(PAGE, 33)
        self.spoil = spoil

    def run(self, step):
        return self.spoil(super().run(step))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(lambda logits: logits[:, :-1], "returned logits"), (lambda logits: logits * float("nan"), "not finite")],
)
def test_nonsense_of_the_runner_is_refused(spoil, message):
    e = Engine(Broken(spoil), EngineConfig(max_running=4, chunk_tokens=8, pages_per_seq=8))
    with pytest.raises(EngineError, match=message):
        e.generate([ask(3)])
    e.check()
    e.runner.spoil = lambda logits: logits
    assert of(Finished, e.stream())[0].tokens == expected(ask(3))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s, seq: s.pool.share(seq.pages[:1]), "has 2 references, but 1 sequences map it"),
        (lambda s, seq: s.pool._free.append(seq.pages[0]), "listed as free"),
        (lambda s, seq: s.cache.insert(seq.tokens[:PAGE], seq.pages[2:]), "will write page .*, which is shared"),
        (lambda s, seq: setattr(seq, "arrival", 9), "request 0 comes before request 1, which is older"),
        (lambda s, seq: s.running.append(s.waiting.pop()), "2 requests run, at most 1 may"),
        (lambda s, seq: setattr(s.waiting[0], "computed", 1), "waits with pages .* and 1 computed"),
        (lambda s, seq: setattr(seq, "computed", 12), "3 pages for 12 computed of 9 tokens"),
    ],
)
def test_check_rejects_an_engine_that_contradicts_itself(spoil, message):
    e = engine(max_running=1)
    e.submit(ask(9))
    e.submit(ask(9, start=20))
    e.step()
    e.check()
    spoil(e.scheduler, e.scheduler.running[0])
    with pytest.raises(EngineError, match=message):
        e.check()
