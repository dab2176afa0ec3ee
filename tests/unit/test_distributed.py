"""Runs in several processes: together they say what one says, name who is wrong, and all end when one is gone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsa_verify.commands.parity import ParityOptions, _run
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import Result, Verdict
from dsa_verify.run import distributed, mesh, partition
from tests.unit.test_partition import comparable, merged

ROOT = Path(__file__).parents[2]
LIMIT = 240  # seconds that a run may take at most, on a machine that does other things too
STEP = ["--scenario", "several-unequal-p16-f32"]
BOTH = ["--surface", "cache_write", "--surface", "dense_mla"]


def start(arguments: list[str], devices: int) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ends(*processes: subprocess.Popen) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each."""
    try:
        said = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *both) for process, both in zip(processes, said, strict=True)]


def parity(provider: str, *arguments: str) -> list[str]:
    given = ["--provider", f"host_providers:{provider}", "--provider-path", str(ROOT / "tests" / "unit")]
    return ["-m", "dsa_verify", "parity", *given, *arguments, "--mesh", "2x4", "--jobs", "1", "--json"]


def on_two(command: list[str]) -> list[tuple[int, str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = ["--coordinator", f"127.0.0.1:{free.getsockname()[1]}", "--processes", "2", "--process"]
    return ends(*(start([*command, *meeting, str(index)], 4) for index in range(2)))


def last_line(text: str) -> str:
    return text.splitlines()[-1]


def test_two_processes_say_what_one_says(tmp_path):
    command = parity("right", *BOTH, *STEP)
    (alone,) = ends(start(command, 8))
    parts = on_two(command)
    assert [code for code, *_ in (alone, *parts)] == [0, 0, 0], (alone[2], *(err for *_, err in parts))
    documents = [json.loads(out) for _, out, _ in parts]
    assert [document["provenance"]["process"] for document in documents] == ["0 of 2", "1 of 2"]
    whole = json.loads(merged(tmp_path, *(out for _, out, _ in parts)).stdout)
    assert comparable(whole) == comparable(json.loads(alone[1]))
    # Each has judged another part of the devices, and the case of its own by all other checks.
    shares = [one["share"] for d in documents for one in d["results"] if one["surface"] == "dense_mla"]
    assert len([one for one in whole["results"] if one["check"] == "sharding"]) == 2
    assert len(set(shares)) > 2


def test_a_kernel_that_is_wrong_on_one_process_is_rejected_and_the_process_named(tmp_path):
    parts = on_two(parity("wrong_heads", *BOTH, *STEP))
    assert [code for code, *_ in parts] == [0, 1], [err for *_, err in parts]
    found = merged(tmp_path, *(out for _, out, _ in parts))
    assert found.exit_code == 1
    (bad,) = [one for one in json.loads(found.stdout)["results"] if one["verdict"] == "rejected"]
    assert (bad["surface"], bad["check"]) == ("dense_mla", "sharding")
    assert bad["reason"].startswith("process 1 of 2: data 1, tensor ")
    assert "and 1 more of 8 judgements" in bad["reason"]  # four devices, output and cache of each: two heads are wrong
    assert bad["reproduce"].endswith("--mesh 2x4")


@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_process_dies_the_other_ends_with_one_error(victim):
    both = [*STEP, "--scenario", "decode-page-edges-d16-bf16", "--surface", "cache_write"]
    begin = time.monotonic()
    found = on_two(parity(f"dies_on_{victim}", *both))
    assert time.monotonic() - begin < 120  # JAX's own heartbeat takes 100 s
    for index, (code, out, err) in enumerate(found):
        assert (code, out) == (3, "")
        assert last_line(err).startswith(f"dsa-verify: process {index} of 2 ")
        assert "Traceback" not in err
    assert "died of SIGKILL" in last_line(found[victim][2])


SUPERVISED = """
import os, signal, sys, time
from dsa_verify.run.distributed import Hosts, heartbeat, supervise
supervise(Hosts("there:1", 2, 1, patience=1.0), lambda text: print(text, flush=True))
heartbeat("was to begin")
{}
"""


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("sys.exit(4)", 4, ""),
        ("time.sleep(60)", 3, "process 1 of 2 made no progress for 1 s, when it was to begin"),
        ("for _ in range(4): time.sleep(0.5); heartbeat('went on')", 0, ""),
        ("os.kill(os.getpid(), signal.SIGABRT)", 3, "process 1 of 2 died of SIGABRT when it was to begin"),
    ],
)
def test_a_supervised_process_ends_as_its_child_or_says_why(body, code, text):
    (found,) = ends(start(["-c", SUPERVISED.format(body)], 1))
    assert found[0] == code, found[2]
    assert found[1].startswith(text) and bool(found[1]) == bool(text)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 3), (signal.SIGKILL, -9)])
def test_a_child_does_not_outlive_the_process_that_supervises_it(sent, code):
    busy = "print('here', flush=True)\nwhile True: time.sleep(0.2); heartbeat('went on')"
    process = start(["-c", SUPERVISED.format(busy)], 1)
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    process.send_signal(sent)
    # Both write to one pipe, which ends when neither is left.
    process.communicate(timeout=30)
    assert process.returncode == code


def part(status: str, share: float | None = None, reason: str = "") -> Result:
    return Result("jnp", "dense_mla", "a", partition.SHARDING, Verdict(status, reason, share))  # pyright: ignore[reportArgumentType]


def test_what_is_judged_in_parts_gets_the_worst_verdict_and_the_largest_share():
    other = Result("jnp", "dense_mla", "a", "parity", Verdict.accepted(0.9))
    parts = [part("accepted", 0.5), other, part("rejected", 7.0, "one"), part("rejected", 3.0, "two")]
    first, joined = partition.joined(parts)
    assert first == other
    assert joined.verdict == Verdict.rejected("one; two", 7.0)
    assert partition.joined([part("accepted", 0.2), part("accepted", 0.6)])[0].verdict == Verdict.accepted(0.6)
    missed = partition.joined([part("accepted", 0.2), part("not verified", None, "no")])[0].verdict
    assert (missed.status, missed.reason) == ("not verified", "no")


@pytest.mark.parametrize("text", ["8", "2x", "0x4", "2x-1", "axb", "2x4x1"])
def test_a_mesh_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="--mesh expects DATAxTENSOR"):
        mesh.parse(text)


@pytest.mark.parametrize("given", [("a:1", None, None), ("a:1", 2, None), (None, 2, 0), ("a:1", 2, 2)])
def test_a_process_that_cannot_be_placed_is_refused(given):
    with pytest.raises(ConfigError, match="--process"):
        distributed.Hosts(*given)


def test_on_a_pod_nothing_keeps_jax_from_asking_where_the_other_hosts_are(monkeypatch):
    import jax

    asked = []
    monkeypatch.setattr(distributed.workers, "tpu_wanted", lambda: True)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: asked.append(dict(os.environ)))
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    distributed.initialize(distributed.Hosts())
    assert len(asked) == 1 and "TPU_SKIP_MDS_QUERY" not in asked[0]


def test_processes_that_share_a_plan_take_no_shard():
    with pytest.raises(ConfigError, match="leave out --shard"):
        _run(
            ParityOptions(
                (), (), (), "quick", None, None, None, None, False, 1.0, 0, shard="1/2", hosts=distributed.Hosts()
            )
        )


def test_a_mesh_of_other_than_all_devices_is_refused():
    with pytest.raises(ConfigError, match="--mesh 64x64 takes 4096 devices"):
        mesh.check_devices(mesh.Grid(64, 64))
