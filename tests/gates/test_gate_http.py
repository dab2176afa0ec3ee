"""The gate over HTTP: what servers answer decides as the embedded model does, whatever fails and dies on the way."""

import functools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms import payload
from dsa_verify.gates.arms.payload import Endpoint
from dsa_verify.gates.arms.served import ServedArm
from dsa_verify.gates.arms.server_command import ServerCommand, running
from dsa_verify.gates.arrange import arrange
from dsa_verify.gates.options import GateOptions
from dsa_verify.gates.records import Question
from dsa_verify.gates.run import run
from dsa_verify.gates.tasks.generated import generated_rows
from tests.gates import faulty
from tests.gates.faulty import FaultyServer

ROOT = Path(__file__).parents[2]
TASKS, DOCUMENTS = ("qasper", "trec"), 2
CALL = f"{sys.executable} -c 'from dsa_verify.commands.serve import serve; serve()'"
SERVE = f"exec {CALL} --port {{port}} --context-length 960 --chunk-tokens 128"
"""As the embedded arms are."""
PATH = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
COMMON = ("--index-topk", "128", "--page-size", "16", "--task", "qasper", "--task", "trec")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Made rows as official LongBench files are."""
    folder = tmp_path_factory.mktemp("data")
    for task in TASKS:
        rows = (
            {("input" if k == "question" else k): v for k, v in row.items()} for row in generated_rows(task, DOCUMENTS)
        )
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return folder


@pytest.fixture(scope="module")
def variables(tmp_path_factory) -> dict[str, str]:
    """Of every server here: one compiles what another has compiled only once."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    cache |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return {**PATH, **cache}


@pytest.fixture(scope="module")
def servers(variables) -> Iterator[tuple[str, str]]:
    """URLs of a dense and a sparse `dsa-verify serve`."""
    with ExitStack() as stack:
        yield tuple(  # pyright: ignore[reportReturnType]
            stack.enter_context(running(ServerCommand(SERVE, {**variables, "DSA_PREFILL_SPARSE": on}, timeout_s=120)))
            for on in "01"
        )


@pytest.fixture(scope="module")
def embedded():
    """The outcome of the embedded arms on the same documents."""
    return run(arrange(GateOptions(tasks=TASKS, documents=DOCUMENTS, controls=False)))


@pytest.fixture
def quick(monkeypatch) -> None:
    """No long waits between attempts."""
    retry = functools.partial(payload.Retry, first_wait_s=0.02, longest_wait_s=0.2)
    monkeypatch.setattr(payload, "Retry", retry)


@pytest.fixture
def before_server(monkeypatch):
    """Makes a `FaultyServer` a proxy: what it answers rightly comes from a real server."""

    def put(proxy: FaultyServer, url: str) -> FaultyServer:
        def answer(prompt: str, chat: bool) -> dict:
            return httpx.post(f"{url}/v1/completions", content=proxy.bodies[-1], trust_env=False, timeout=60).json()

        def get(handler: Any) -> None:
            response = httpx.get(url + handler.path, trust_env=False)
            handler._send(response.status_code, response.content)

        monkeypatch.setattr(faulty, "_answer", answer)
        monkeypatch.setattr(faulty._Handler, "do_GET", get, raising=False)
        return proxy

    return put


def arguments(servers: tuple[str, str], data: Path, work: Path) -> list[str]:
    dense, sparse = servers
    given = ("--dense-url", dense, "--sparse-url", sparse, "--data", data, "--work", work)
    return ["gate", *map(str, given), *COMMON, "--json"]


def decided(given: list[str]) -> dict[str, Any]:
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 4, result.output
    return json.loads(result.stdout)


def texts_in(journal: Path) -> dict[str, str | None]:
    return {line["key"]: line["text"] for line in lines_in(journal)}


def lines_in(journal: Path) -> list[dict[str, Any]]:
    """Answers in a journal that another process may be writing."""
    whole = journal.read_bytes() if journal.exists() else b""
    return [json.loads(line) for line in whole.split(b"\n")[1:-1]]


def demand_same(content: dict[str, Any], embedded: Any, work: Path) -> None:
    """Decision and answers are those of the embedded arms."""
    due = json.loads(json.dumps(embedded.decision.document()))
    assert {name: content[name] for name in due} == due
    assert content["missing"] == {"dense": 0, "sparse": 0}
    for arm in ("dense", "sparse"):
        texts = {key: answer.text for key, answer in embedded.answers[arm].items()}
        assert texts_in(work / f"{arm}.jsonl") == texts


def test_servers_decide_as_the_embedded_arms_do(servers, data, embedded, tmp_path):
    content = decided(arguments(servers, data, tmp_path))
    assert content["verdict"] == "INCONCLUSIVE"
    demand_same(content, embedded, tmp_path)
    arms = content["manifest"]
    assert arms["dense"]["sparse_prefill"] == 0 < arms["sparse"]["sparse_prefill"]
    assert {arm["served_model"] for arm in (arms["dense"], arms["sparse"])} == {"dsa-verify-tiny"}


def test_faulty_proxy_changes_nothing(servers, data, embedded, tmp_path, quick, before_server):
    prompts = [answer.prompt for answer in questions()]
    scripts = (("http_500", "null_text"), ("empty_choices", "reset"), ("finish_abort", "no_answer"))
    scripts += (("too_many_tokens", "no_prompt_tokens", "truncated"),)
    dense, sparse = servers
    with before_server(FaultyServer(dict(zip(prompts, scripts, strict=True)), outage_s=1.0), sparse) as proxy:
        content = decided(arguments((dense, proxy.url), data, tmp_path))
    demand_same(content, embedded, tmp_path)
    assert all(proxy.asked.count(prompt) > len(script) for prompt, script in zip(prompts, scripts, strict=True))


def questions() -> list[Question]:
    gate = arrange(GateOptions(tasks=TASKS, documents=DOCUMENTS, controls=False))
    return [document.question for task in gate.tasks for document in task.documents]


def test_killed_gate_resumes_and_asks_nothing_twice(servers, data, embedded, tmp_path, before_server):
    dense, sparse = servers
    with before_server(FaultyServer(delay_s=0.3), sparse) as proxy:
        given = arguments((dense, proxy.url), data, tmp_path)
        code = "from dsa_verify.cli import main; main()"
        with subprocess.Popen(
            [sys.executable, "-c", code, *given], env={**os.environ, **PATH},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            deadline = time.monotonic() + 60
            while len(proxy.asked) < 2:
                assert process.poll() is None and time.monotonic() < deadline, "it never asked a second question"
                time.sleep(0.01)
            process.kill()
        kept = {arm: texts_in(tmp_path / f"{arm}.jsonl") for arm in ("dense", "sparse")}
        assert len(kept["sparse"]) == 1, "it was killed in the middle"
        content = decided(given)
    demand_same(content, embedded, tmp_path)
    answered = {question.prompt for question in questions() if question.key in kept["sparse"]}
    counts = Counter(proxy.asked)
    assert [counts[prompt] for prompt in answered] == [1]
    assert sum(counts.values()) == len(questions()) + 1, "the one under way was asked again"
    for arm in kept:
        keys = [line["key"] for line in lines_in(tmp_path / f"{arm}.jsonl")]
        assert len(keys) == len(set(keys)) == len(questions())


def test_server_command_decides_as_the_embedded_arms_do(variables, data, embedded, tmp_path, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    starts = tmp_path / "starts"
    command = f"echo once >> {starts}; {SERVE}"
    given = ["gate", "--server-cmd", command, "--data", str(data), "--work", str(tmp_path), *COMMON, "--json"]
    content = decided(given)
    for arm in ("dense", "sparse"):
        assert texts_in(tmp_path / f"{arm}.jsonl") == {key: one.text for key, one in embedded.answers[arm].items()}
    assert content["macro"]["difference"] == embedded.decision.document()["macro"]["difference"]
    arms = content["manifest"]
    assert arms["dense"]["sparse_prefill"] == 0 < arms["sparse"]["sparse_prefill"]
    assert len(starts.read_text().split()) == 2
    again = decided(given)
    assert len(starts.read_text().split()) == 2, "nothing was left to ask"
    assert again["manifest"] == content["manifest"] and again["macro"] == content["macro"]


@pytest.fixture
def stating(monkeypatch):
    """Makes every `FaultyServer` say of itself what is given."""

    def state(**facts: Any) -> None:
        monkeypatch.setattr(
            faulty._Handler, "do_GET", lambda one: one._send(200, json.dumps(facts).encode()), raising=False
        )

    return state


def asked_of(server: FaultyServer, journal: Path) -> dict[str, Any]:
    """The manifest of an arm after one question."""
    arm = ServedArm("sparse", Endpoint(server.url, "m"), journal)
    (answer,) = arm.answer([Question("t/1", "a question", 8)], lambda answer: None).values()
    assert answer.text == faulty.right("a question")
    return arm.manifest()


def test_proof_of_sparse_prefill_outlives_the_server(stating, tmp_path):
    """A run that was killed after its last question finds nothing to ask, of a server that counts from 0."""
    with FaultyServer() as server:
        stating(sparse_prefill=6, environment={"DSA_PREFILL_SPARSE": "1"})
        assert asked_of(server, tmp_path / "sparse.jsonl")["sparse_prefill"] == 6
        stating(sparse_prefill=0, environment={"DSA_PREFILL_SPARSE": "1"})
        assert asked_of(server, tmp_path / "sparse.jsonl")["sparse_prefill"] == 6
        assert asked_of(server, tmp_path / "other.jsonl")["sparse_prefill"] == 0
    assert len(server.asked) == 2


def test_server_that_was_started_again_otherwise_does_not_go_on_in_the_journal(stating, tmp_path):
    with FaultyServer() as server:
        stating(sparse_prefill=0, environment={"DSA_PREFILL_SPARSE": "0"})
        asked_of(server, tmp_path / "sparse.jsonl")
        stating(sparse_prefill=0, environment={"DSA_PREFILL_SPARSE": "1"})
        with pytest.raises(ConfigError, match="is of another run"):
            asked_of(server, tmp_path / "sparse.jsonl")
