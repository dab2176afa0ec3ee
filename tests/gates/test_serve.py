"""The server: OpenAI's protocol over real sockets, requests that end when their client goes, and proof of what ran."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms.client import answer_all
from dsa_verify.gates.arms.journal import Journal
from dsa_verify.gates.arms.payload import Endpoint
from dsa_verify.gates.arms.server_command import ServerCommand, running
from dsa_verify.gates.records import Question
from dsa_verify.model.tiny import DOCUMENT
from dsa_verify.serve.model import ServerSettings, load

ROOT = Path(__file__).parents[2]
FACTS = "the code of one is alpha beta . the code of two is gamma delta . the code of one is"
SERVE = f"exec {sys.executable} -c 'from dsa_verify.commands.serve import serve; serve()' --context-length 256"


def variables(**changes: str) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **changes}


@pytest.fixture(scope="module")
def http():
    """A client of the real server with the built-in model: sparse prefill, prefix cache, two requests at once."""
    command = f"{SERVE} --port {{port}} --prefix-cache --concurrency 2"
    with (
        running(ServerCommand(command, variables(DSA_PREFILL_SPARSE="1", DSA_PAGE_TOPK="64"), timeout_s=120)) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=60) as http,
    ):
        yield http


def complete(http: httpx.Client, prompt=FACTS, **fields) -> dict:
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events(http: httpx.Client, path: str, **fields) -> list[dict]:
    """Events of a stream, without the last one, which says that it is the last."""
    with http.stream("POST", path, json={"max_tokens": 6, "temperature": 0, "stream": True, **fields}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def info(http: httpx.Client) -> dict:
    return http.get("/server_info").json()


def test_completion_answers_and_counts(http):
    http.post("/flush_cache")
    body = complete(http)
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("alpha beta", "length")
    assert (body["object"], body["model"]) == ("text_completion", "dsa-verify-tiny")
    assert body["usage"] == {
        "prompt_tokens": 21, "completion_tokens": 2, "total_tokens": 23, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


def test_chat_answers(http):
    messages = [{"role": "system", "content": FACTS[:30]}, {"role": "user", "content": FACTS[30:]}]
    body = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2, "temperature": 0}).json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "alpha beta"}


def test_stop_text_ends_an_answer_and_is_no_part_of_it(http):
    whole = complete(http, max_tokens=6)["choices"][0]["text"]
    assert whole == "alpha beta . the code of"
    body = complete(http, max_tokens=6, stop=["never", " ."])
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("alpha beta", "stop")
    assert body["usage"]["completion_tokens"] == 3, "the token that completed the stop text was computed"
    assert complete(http, max_tokens=6, stop="alpha")["choices"][0]["text"] == ""


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("stop", [None, "beta .", "nothing"])
def test_stream_says_what_a_whole_response_says(http, chat, stop):
    path = "/v1/chat/completions" if chat else "/v1/completions"
    asked = {"messages": [{"role": "user", "content": FACTS}]} if chat else {"prompt": FACTS}
    whole = http.post(path, json={**asked, "max_tokens": 6, "temperature": 0, "stop": stop}).json()
    *chunks, last = events(http, path, **asked, stop=stop, stream_options={"include_usage": True})
    choices = [chunk["choices"][0] for chunk in chunks]
    text = "".join(choice["delta"]["content"] if chat else choice["text"] for choice in choices)
    due = whole["choices"][0]
    assert text == (due["message"]["content"] if chat else due["text"])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [due["finish_reason"]]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_answer_does_not_depend_on_the_words_of_earlier_requests(http):
    """The vocabulary of `Words` shows a token as it was first written; another client's spelling is not ours."""
    facts = FACTS.replace("alpha", "omega")
    assert complete(http, facts.upper())["choices"][0]["text"] == "OMEGA BETA"
    assert complete(http, facts)["choices"][0]["text"] == "omega beta"


def test_seeded_sampling_repeats_and_seeds_differ(http):
    texts = [
        complete(http, "a b c", temperature=20.0, max_tokens=8, seed=seed)["choices"][0]["text"] for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_prefix_hits_are_counted_and_flushed(http):
    http.post("/flush_cache")
    cached = [complete(http)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 16], "one whole page of 21 tokens"
    assert http.post("/flush_cache").json()["flushed_pages"] >= 1
    assert complete(http)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"prompt": "a " * 300}, 400, "prompt", "maximum context length is 256 tokens"),
        ({"prompt": "a " * 250, "max_tokens": 7}, 400, "prompt", "250 tokens of the prompt and 7"),
        ({"prompt": ""}, 400, None, "0 prompt tokens"),
        ({"prompt": ["a", "b"]}, 400, "prompt", "one text"),
        ({"prompt": [5, 9999]}, 400, "prompt", "tokens from 0 to 8191"),
        ({"max_tokens": 0}, 400, "max_tokens", "at least 1"),
        ({"max_tokens": True}, 400, "max_tokens", "whole number"),
        ({"temperature": "0"}, 400, "temperature", "a number"),
        ({"temperature": -1}, 400, None, "temperature >= 0"),
        ({"stop": [""]}, 400, "stop", "none empty"),
        ({"n": 2}, 400, "n", "not supported"),
        ({"logprobs": 0}, 400, "logprobs", "not supported"),
        ({"model": "other"}, 404, "model", "'other' is not served"),
    ],
)
def test_bad_request_gets_an_error_object(http, fields, status, param, words):
    response = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "temperature": 0, **fields})
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]


def test_body_that_is_no_json_gets_an_error_object(http):
    response = http.post("/v1/completions", content=b'{"prompt": ')
    assert response.status_code == 400
    assert "not JSON" in response.json()["error"]["message"]


def test_server_info_is_a_manifest_and_proves_that_sparse_ran(http):
    before = info(http)
    complete(http, "one two three")
    after = info(http)
    assert {name: after[name] for name in ("model", "index_topk", "page_size", "context_length", "concurrency")} == {
        "model": "dsa-verify-tiny", "index_topk": 128, "page_size": 16, "context_length": 256, "concurrency": 2,
    }  # fmt: skip
    assert (after["prefix_cache"], after["chunk_tokens"], after["kernels"]) == (True, 64, "jnp")
    assert after["environment"] == {"DSA_PAGE_TOPK": "64", "DSA_PREFILL_SPARSE": "1"}
    assert (after["backend"]["prefill_sparse"], after["backend"]["page_topk"]) == (True, 64)
    assert after["sparse_prefill"] == before["sparse_prefill"] + 3, "one chunk through three layers"
    assert {path["attention"] for path in after["paths"]} == {"sparse_mla_prefill_qblock", "sparse_mla_decode"}
    assert after["versions"]["jax"]
    assert http.get("/v1/models").json()["data"][0]["id"] == after["model"]
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_request_of_a_client_that_goes_away_is_aborted(http, stream):
    body = {"prompt": FACTS, "max_tokens": 200, "temperature": 0, "stream": stream}
    before = info(http)["engine"]["computed_tokens"]
    with socket.create_connection((http.base_url.host, http.base_url.port)) as one:
        content = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        one.sendall(head.encode() + content)
        _until(lambda: info(http)["running"] == 1)
    _until(lambda: info(http)["running"] == 0)
    assert info(http)["engine"]["computed_tokens"] < before + 180, "it was aborted before it was done"
    assert complete(http)["choices"][0]["text"] == "alpha beta"


def _until(happened, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"


def test_client_of_the_gate_and_server_understand_each_other(http, tmp_path):
    questions = [Question(f"t/{n}", f"{FACTS[:-6]}two is {n} . code of two is", 4, (" .",)) for n in range(6)]
    for api in ("completions", "chat"):
        endpoint = Endpoint(str(http.base_url), "dsa-verify-tiny", api)  # pyright: ignore[reportArgumentType]
        with Journal(tmp_path / api, "sparse", {}) as journal:
            answers = asyncio.run(answer_all(questions, endpoint, journal, concurrency=3))
        assert {answer.reason for answer in answers.values()} == {None}
        assert {answer.finish for answer in answers.values()} <= {"stop", "length"}
        assert all(answer.text and answer.prompt_tokens and answer.completion_tokens for answer in answers.values())
    with Journal(tmp_path / "other", "sparse", {}) as journal:
        (answer,) = asyncio.run(answer_all(questions[:1], Endpoint(str(http.base_url), "other"), journal)).values()
    assert answer.reason == "http_404"


def test_ended_server_gives_what_it_has_and_exits_0():
    command = f"{SERVE} --kernels jnp"
    environment = {**os.environ, **variables()}
    with subprocess.Popen(["/bin/sh", "-c", command], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        port = int(url.removeprefix("http://127.0.0.1:"))
        second = f"from dsa_verify.commands.serve import serve; serve(['--port', '{port}'])"
        refused = subprocess.run([sys.executable, "-c", second], env=environment, capture_output=True, text=True)
        assert "ConfigError: cannot serve at 127.0.0.1" in refused.stderr
        with httpx.stream(
            "POST", f"{url}/v1/completions", trust_env=False, timeout=60,
            json={"prompt": FACTS, "max_tokens": 220, "temperature": 0, "stream": True},
        ) as response:  # fmt: skip
            lines = response.iter_lines()
            first = next(lines)
            assert json.loads(first.removeprefix("data: "))["choices"][0]["finish_reason"] is None
            process.send_signal(signal.SIGTERM)
            rest = [line.removeprefix("data: ") for line in lines if line]
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "abort"
        assert process.wait(timeout=30) == 0
        assert process.stdout.read() == "", "the URL is the one line on stdout"


def test_checkpoint_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DOCUMENT))
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        load(ServerSettings(tmp_path), {})
