"""Failpoints: which points there are, what they do, and that a wrong one refuses the start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.running_server import running_server, start_process

from agenttx_server import failpoints
from agenttx_server.main import CannotStart


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm("")


def test_nothing_is_armed_unless_asked_for():
    assert not failpoints.is_armed()
    failpoints.hit("commit.before")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("write.after:intnet=kill@1", "there is no failpoint 'write.after:intnet'"),
        ("commit.before", "can't do ''"),
        ("commit.before=kill@0", "can't do 'kill@0'"),
        ("commit.before=kill%2", "can't do 'kill%2'"),
        ("commit.before=sleep:soon", "can't do 'sleep:soon'"),
        ("commit.before=sleep:1.2.3", "can't do 'sleep:1.2.3'"),
    ],
)
async def test_a_wrong_failpoint_refuses_the_start_in_one_line(monkeypatch, text, says):
    monkeypatch.setenv(failpoints.VARIABLE, text)
    with pytest.raises(CannotStart, match="AGENTTX_FAILPOINTS") as refused:
        async with running_server():
            pass
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_process_says_so_and_ends(tmp_path: Path):
    process = start_process(tmp_path, {failpoints.VARIABLE: "nowhere=kill@1"})
    assert process.wait() == 78
    assert len(process.log) == 1


def died(text: str, hits: int, seed: str = "") -> int:
    """Hit a point in another process; return how many hits it lived through."""
    program = (
        "import sys\nfrom agenttx_server import failpoints\nfailpoints.arm(sys.argv[1], sys.argv[3])\n"
        "for _ in range(int(sys.argv[2])):\n  failpoints.hit('commit.after')\n  print(flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, text, str(hits), seed], capture_output=True, env=os.environ
    )
    lived = ended.stdout.count(b"\n")
    assert ended.returncode == (0 if lived == hits else -9)
    return lived


def test_a_process_dies_at_the_hit_that_was_named():
    assert died("commit.after=kill@3", 10) == 2
    assert died("commit.before=kill@1", 10) == 10


def test_probabilities_are_seeded():
    first = died("commit.after=kill%0.1", 200, "one")
    assert first == died("commit.after=kill%0.1", 200, "one")
    assert first != died("commit.after=kill%0.1", 200, "two")


async def test_every_point_can_be_armed_and_a_server_serves_through_all_of_them(monkeypatch):
    monkeypatch.setenv(failpoints.VARIABLE, ",".join(f"{name}=sleep:0" for name in failpoints.NAMES))
    from tests.support.calls import begin, commit, step

    async with running_server() as server:
        transaction = await begin(server.stub)
        await step(server.stub, transaction, 1, "kv.put", {"key": "a", "value": 1})
        await step(server.stub, transaction, 2, "effect.stage", {"channel": "mail", "payload": {"n": 1}})
        committed = await commit(server.stub, transaction)

    assert committed.effects_dispatched == 1
