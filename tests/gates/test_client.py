"""The client of endpoints: whatever a server does, every question is answered or missing by name, and none is lost."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms.client import answer_all
from dsa_verify.gates.arms.journal import Journal
from dsa_verify.gates.arms.payload import Endpoint, Retry, body_of, payload_sha, read_reply
from dsa_verify.gates.records import Answer, Question
from tests.gates.faulty import GARBLED, RAW, STATUSES, TOKENS, FaultyServer, right

ROOT = Path(__file__).parents[2]
QUICK = Retry(attempts=3, first_wait_s=0.005, longest_wait_s=0.02, patience_s=20)
NAMES = {"empty_at_length": "null_text", "no_usage": "wrong_token_count", "no_prompt_tokens": "wrong_token_count"}
NAMES |= {"too_many_tokens": "wrong_token_count", "reset": "connection", "no_answer": "connection"}
NAMES |= {"hang": "timeout", "drip": "timeout", "truncated": "bad_json"}
"""The reason that a fault is recorded as, where it has another name."""
FAULTS = (*STATUSES, *GARBLED, *RAW)
FINAL = ("http_400", "http_404")
"""Faults that no second attempt changes."""


def questions(count: int) -> list[Question]:
    return [Question(f"task/{number}", f"question {number}", max_tokens=16, stop=("\n",)) for number in range(count)]


def endpoint(server: FaultyServer, **changes) -> Endpoint:
    return dataclasses.replace(Endpoint(server.url, "model", timeout_s=0.3, retry=QUICK), **changes)


def ask(path: Path, asked: list[Question], to: Endpoint, concurrency: int = 1, **options) -> dict[str, Answer]:
    with Journal(path, "dense", {"seed": 0}) as journal:
        return asyncio.run(answer_all(asked, to, journal, concurrency=concurrency, **options))


def timeless(answers: dict[str, Answer]) -> dict[str, Answer]:
    return {key: dataclasses.replace(answer, seconds=0.0) for key, answer in answers.items()}


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_faults_change_no_answer(tmp_path, api):
    asked = questions(20)
    passing = [fault for fault in FAULTS if fault not in FINAL]
    faults = {q.prompt: [passing[n % len(passing)], passing[(3 * n + 1) % len(passing)]] for n, q in enumerate(asked)}
    assert {fault for script in faults.values() for fault in script} == set(passing)
    with FaultyServer() as server:
        expected = ask(tmp_path / "calm.jsonl", asked, endpoint(server, api=api))
    with FaultyServer(faults) as server:
        answers = ask(tmp_path / "faults.jsonl", asked, endpoint(server, api=api), concurrency=4)
        assert sorted(server.asked) == sorted(3 * [q.prompt for q in asked])
    assert timeless(answers) == timeless(expected)
    assert list(answers) == [q.key for q in asked]
    for question in asked:
        answer = answers[question.key]
        assert (answer.text, answer.reason, answer.finish) == (right(question.prompt), None, "stop")
        assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (TOKENS, 4, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_that_stays_is_a_missing_value_with_its_name(tmp_path, fault):
    away = fault in ("http_429", "http_503") or NAMES.get(fault) == "connection"
    patient = dataclasses.replace(QUICK, patience_s=0.5 if away else 20)
    with FaultyServer(always=fault) as server:
        (answer,) = ask(tmp_path / "j", questions(1), endpoint(server, timeout_s=0.1, retry=patient)).values()
        attempts = len(server.asked)
    assert answer.text is None
    assert answer.reason == NAMES.get(fault, fault)
    if fault in FINAL:
        assert attempts == 1
    elif away:
        assert attempts > QUICK.attempts, "a server that is away is waited for, not counted"
    else:
        assert attempts == QUICK.attempts
    # Three attempts of 0.1 s, or 0.5 s of patience, and then some for a busy machine; an attempt without a limit of its
    # own would take a hanging or dripping server's 10 s.
    assert 0 < answer.seconds < 5


def test_server_that_is_away_for_a_while_is_waited_for(tmp_path):
    with FaultyServer(outage_s=0.5) as server:
        answers = ask(tmp_path / "j", questions(3), endpoint(server))
        assert len(server.asked) > 3 + QUICK.attempts
    assert [answer.reason for answer in answers.values()] == [None] * 3


def test_patience_with_a_server_that_stays_away_is_spent_once(tmp_path):
    retry = dataclasses.replace(QUICK, patience_s=0.4)
    with FaultyServer(always="http_503") as server:
        begun = time.monotonic()
        answers = ask(tmp_path / "j", questions(8), endpoint(server, retry=retry))
        # Eight times the patience, spent once a question, would be 3.2 s.
        assert time.monotonic() - begun < 1.6
    assert {answer.reason for answer in answers.values()} == {"http_503"}


def test_server_that_goes_away_for_good_leaves_named_values(tmp_path):
    retry = dataclasses.replace(QUICK, patience_s=0.2)
    asked = questions(4)
    with FaultyServer() as server:
        to = endpoint(server, retry=retry)

        def close_after_two(answer: Answer) -> None:
            if answer.key == "task/1":
                server.__exit__()

        answers = ask(tmp_path / "j", asked, to, on_answer=close_after_two)
    assert [answer.reason for answer in answers.values()] == [None, None, "connection", "connection"]


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(tmp_path, form):
    # A date has whole seconds, so that one 2 s ahead is between 1 and 2 s away.
    stated = "1" if form == "seconds" else format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    with FaultyServer({"question 0": ["http_503"]}, retry_after=stated) as server:
        (answer,) = ask(tmp_path / "j", questions(1), endpoint(server)).values()
        assert 0.9 < server.at[1] - server.at[0] < 2.5
    assert answer.reason is None


def test_retry_after_beyond_the_patience_ends_the_question(tmp_path):
    with FaultyServer(always="http_503", retry_after="3600") as server:
        (answer,) = ask(tmp_path / "j", questions(1), endpoint(server)).values()
        assert len(server.asked) == 1
    assert answer.reason == "http_503"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_more_requests_are_under_way_than_asked_for(tmp_path, concurrency):
    with FaultyServer(delay_s=0.05) as server:
        answers = ask(tmp_path / "j", questions(12), endpoint(server, timeout_s=20), concurrency)
        assert server.peak == concurrency
    assert {answer.reason for answer in answers.values()} == {None}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_unreachable_endpoint_is_refused_in_one_line(tmp_path, concurrency):
    with FaultyServer() as server:
        gone = endpoint(server)
    begun = time.monotonic()
    with pytest.raises(ConfigError) as refusal:
        ask(tmp_path / "j", questions(5), gone, concurrency)
    assert gone.root in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert time.monotonic() - begun < 2
    assert len((tmp_path / "j").read_text().splitlines()) == 1, "nothing but the header"


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://x", "http://", "http://host:0/", "http://[::1"])
def test_url_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="no URL of a server"):
        Endpoint(url, "model")


def test_payload_is_the_fixed_one_and_v1_may_be_in_the_url(tmp_path):
    question = Question("a/1", "Wer fragt? ␄ \ud800", max_tokens=9, stop=("\n", "."))
    with FaultyServer() as server:
        fixed = {"model": "model", "max_tokens": 9, "temperature": 0, "top_p": 1, "seed": 5, "stop": ["\n", "."]}
        to = endpoint(server, url=server.url + "/v1/", seed=5)
        assert to.address == server.url + "/v1/completions"
        assert body_of(question, to) == {**fixed, "prompt": question.prompt}
        assert body_of(question, dataclasses.replace(to, api="chat")) == {
            **fixed, "messages": [{"role": "user", "content": question.prompt}],
        }  # fmt: skip
        asked = dataclasses.replace(question, prompt="Wer fragt? ␄ é")
        ask(tmp_path / "j", [asked], to)
        assert json.loads(server.bodies[0]) == body_of(asked, to)
    same, other = (
        payload_sha(body_of(asked, dataclasses.replace(to, **change))) for change in ({"model": "b"}, {"seed": 6})
    )
    assert same == payload_sha(body_of(asked, to)) != other


def test_bearer_token_is_sent_and_never_shown(tmp_path):
    with FaultyServer() as server:
        to = endpoint(server, token="geheim")
        assert "geheim" not in repr(to)
        ask(tmp_path / "j", questions(1), to)
    assert "geheim" not in (tmp_path / "j").read_text()


def response(text: str | None = "a", finish: str | None = "stop", **usage) -> dict:
    return {"choices": [{"text": text, "finish_reason": finish}], "usage": {"prompt_tokens": 3, **usage}}


@pytest.mark.parametrize(
    ("body", "reason", "text"),
    [
        (response(""), "null_text", None),
        (response("", completion_tokens=0), None, ""),
        (response("", "length", completion_tokens=4), "null_text", None),
        (response(None, completion_tokens=4), "null_text", None),
        (response(), None, "a"),
        (response(finish="length", completion_tokens=4), None, "a"),
        (response(completion_tokens=5), "wrong_token_count", None),
        (response(completion_tokens=-1), "wrong_token_count", None),
        (response(prompt_tokens="3"), "wrong_token_count", None),
        (response(prompt_tokens=True), "wrong_token_count", None),
        (response(prompt_tokens=None), "wrong_token_count", None),
        (response(prompt_tokens_details={"cached_tokens": 1.5}), "wrong_token_count", None),
        (response() | {"usage": None}, "wrong_token_count", None),
        (response(finish="content_filter"), "finish_content_filter", None),
        (response(finish=None), "finish_null", None),
        (response() | {"choices": 2 * response()["choices"]}, "many_choices", None),
        (response() | {"choices": [None]}, "empty_choices", None),
        ({"error": "no"}, "error_object", None),
        ([], "bad_json", None),
    ],
)
def test_response_is_an_answer_or_has_a_name(body, reason, text):
    reply = read_reply(json.dumps(body).encode(), "completions", max_tokens=4)
    assert (reply.reason, reply.text) == (reason, text)


def test_answers_of_the_journal_are_not_asked_again_and_failures_are(tmp_path):
    asked, seen = questions(6), []
    with FaultyServer({"question 2": ["http_400"], "question 4": 3 * ["null_text"]}) as server:
        first = ask(tmp_path / "j", asked, endpoint(server))
        assert {key for key, answer in first.items() if answer.text is None} == {"task/2", "task/4"}
        before = len(server.asked)
        second = ask(tmp_path / "j", asked, endpoint(server), on_answer=lambda answer: seen.append(answer.key))
        assert server.asked[before:] == ["question 2", "question 4"]
        assert sorted(seen) == sorted(q.key for q in asked)
        assert all(answer.text == right(q.prompt) for q, answer in zip(asked, second.values(), strict=True))
        changed = [dataclasses.replace(asked[0], max_tokens=5), dataclasses.replace(asked[1], prompt="new"), asked[2]]
        before = len(server.asked)
        ask(tmp_path / "j", changed, endpoint(server))
        assert server.asked[before:] == ["question 0", "new"], "another payload or prompt is another question"


def test_two_questions_with_one_key_are_refused(tmp_path):
    with FaultyServer() as server, pytest.raises(ConfigError, match="'task/0'"):
        ask(tmp_path / "j", 2 * questions(1), endpoint(server))


CLIENT = """
import sys
from pathlib import Path
from tests.gates.test_client import ask, endpoint, questions
class server: url = sys.argv[1]
ask(Path(sys.argv[2]), questions(40), endpoint(server, timeout_s=20), concurrency=2)
"""


def client(server: FaultyServer, path: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", CLIENT, server.url, str(path)], env=environment, cwd=ROOT)


def test_killed_client_resumes_and_asks_nothing_twice(tmp_path):
    path = tmp_path / "j"
    with FaultyServer(delay_s=0.02) as server:
        for goal in (8, 20):
            process = client(server, path)
            while len(server.asked) < goal:
                assert process.poll() is None
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            assert process.wait(timeout=20) == -signal.SIGKILL
        with path.open("ab") as file:
            file.write(b'{"arm": "dense", "ok": tr')  # as a kill between two blocks of one line leaves it
        kept = {json.loads(line)["key"] for line in path.read_bytes().splitlines()[1:-1]}
        assert 10 < len(kept) < 40
        before = len(server.asked)
        assert client(server, path).wait(timeout=20) == 0
        assert sorted(server.asked[before:]) == sorted(q.prompt for q in questions(40) if q.key not in kept)
        answers = ask(path, questions(40), endpoint(server))
        assert len(server.asked) == before + 40 - len(kept)
    assert [answer.text for answer in answers.values()] == [right(q.prompt) for q in questions(40)]
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert len(lines) == 40, "one line a question"
