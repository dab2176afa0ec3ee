"""What a server is made of, without one: text that may be sent, and the thread that drives the engine."""

import asyncio
import time

import numpy as np
import pytest

from dsa_verify.engine import Engine, EngineConfig, Finished, GenerationRequest, Token
from dsa_verify.errors import EngineError, RequestError
from dsa_verify.serve.text import Writer
from dsa_verify.serve.worker import Worker


class Letters:
    """A tokenizer of bytes; letters beyond ASCII take several, and some of them are no text yet."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    ("tokens", "stops", "pieces", "stopped"),
    [
        (b"abc", [], ["a", "b", "c", ""], False),
        ("aé".encode(), [], ["a", "", "é", ""], False),
        (b"a<b<end>c", ["<end>"], ["a", "", "<b", "", "", "", "", ""], True),
        (b"xyz", ["yz", "xyz"], ["", "", ""], True),
        (b"ab\n", ["\n"], ["a", "b", ""], True),
        (b"a<e", ["<end>"], ["a", "", "", "<e"], False),
    ],
)
def test_text_is_sent_once_no_stop_text_can_begin_in_it(tokens, stops, pieces, stopped):
    writer, sent = Writer(Letters(), stops), []
    for token in tokens:
        sent.append(writer.add(token))
        if writer.stopped:
            break
    else:
        sent.append(writer.rest())
    assert writer.stopped == stopped
    assert sent == pieces


class Toy:
    """A `Runner` that always answers token 5, after a while; from step number `fails_at` on it answers nonsense."""

    page_size, pool_pages, vocab_size = 16, 41, 8

    def __init__(self, fails_at: int | None = None, delay_s: float = 0.0) -> None:
        self.steps, self.fails_at, self.delay_s = 0, fails_at, delay_s

    def run(self, step) -> np.ndarray:
        self.steps += 1
        time.sleep(self.delay_s)
        failed = self.fails_at is not None and self.steps >= self.fails_at
        return np.tile(np.where(np.arange(8) == 5, np.nan if failed else 1.0, 0.0), (step.seqs, 1))


def worker_of(runner) -> Worker:
    worker = Worker(Engine(runner, EngineConfig(max_running=2, chunk_tokens=8, pages_per_seq=20, prefix_cache=False)))
    worker.start()
    return worker


async def collected(worker: Worker, length: int, stop_after: int | None = None) -> list:
    seen = []
    async with worker.events(GenerationRequest((1, 2, 3), length)) as told:
        async for event in told:
            seen.append(event)
            if stop_after is not None and sum(isinstance(one, Token) for one in seen) == stop_after:
                break
    return seen


def test_worker_runs_requests_and_forgets_those_that_are_left():
    worker = worker_of(Toy())

    async def story():
        whole, cut = await asyncio.gather(collected(worker, 5), collected(worker, 300, stop_after=2))
        with pytest.raises(RequestError, match="needs"):
            await collected(worker, 5000)
        return whole, cut, await asyncio.wrap_future(worker.call(lambda engine: len(engine.scheduler.running)))

    whole, cut, left = asyncio.run(story())
    worker.stop()
    assert isinstance(whole[-1], Finished) and whole[-1].reason == "length"
    assert not any(isinstance(event, Finished) for event in cut)
    assert left == 0, "a request that was left is aborted"


def test_worker_that_stops_ends_requests_as_aborted():
    worker = worker_of(Toy(delay_s=0.02))  # 300 tokens take 6 s: it is stopped before they are done

    async def story():
        going = asyncio.ensure_future(collected(worker, 300))
        while not await asyncio.wrap_future(worker.call(lambda engine: engine.busy)):
            await asyncio.sleep(0)
        await asyncio.to_thread(worker.stop)
        return await going

    *_, last = asyncio.run(story())
    assert isinstance(last, Finished) and last.reason == "abort"
    with pytest.raises(EngineError, match="shutting down"):
        worker.call(lambda engine: engine.busy)


def test_engine_that_fails_fails_every_request_with_its_reason():
    worker = worker_of(Toy(fails_at=3))

    async def story():
        return await asyncio.gather(*(collected(worker, 100) for _ in range(3)), return_exceptions=True)

    for error in asyncio.run(story()):
        assert isinstance(error, EngineError)
        assert "not finite" in str(error)
    assert "not finite" in (worker.failure or "")
    worker.stop()
