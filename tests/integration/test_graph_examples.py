"""The examples of graphs do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.running_server import PYTHONPATH, server_process

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(example: str, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / example, address, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        check=False,
    )


def told(example: str, address: str, *arguments: str) -> list[str]:
    done = run(example, address, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_graphs_of_the_examples(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        healed = told("self_healing_order.py", server.address)
        counted = told("map_reduce.py", server.address)
        allowed = told("support_agent.py", server.address, "yes")
        refused = told("support_agent.py", server.address, "no")
        unasked = run("support_agent.py", server.address)
    assert unasked.returncode == 1
    assert unasked.stderr.startswith("nobody answers here: give the decision as an argument")
    assert healed == [
        "chose ada-lovelace",
        "reserved 12A",
        "released 12A",
        "chose c-17",
        "reserved 12A",
        "placed the order of c-17",
        "COMPLETED: c-17/12A; seats taken: ['12A']",
    ]
    assert len(counted) == 2
    assert counted[0].startswith("FAILED: Hint: ")
    assert "document 'letter' can't be read" in counted[0]
    most, names = counted[1].split(", counted ")
    assert most == "COMPLETED: [['the', 6], ['fox', 3], ['and', 2]]"
    assert sorted(names.strip("[]").replace("'", "").split(", ")) == ["fable", "letter", "letter", "proverb"]
    asked = [
        "found the order of bob",
        "wrote to bob: your order is on its way",
        "found the order of ada",
        "quoted o-7",
        "INTERRUPTED: refund 4100 for o-7?",
    ]
    assert allowed == [
        *asked,
        # The node that asked begins anew, in another process; it does not ask the payment service again.
        "refunded o-7: 4100",
        "wrote to ada: refunded 4100",
        "COMPLETED: refunded 4100, answered; refunds: [4100]",
    ]
    assert refused == [
        *asked,
        "wrote to ada: refund refused",
        "COMPLETED: refund refused, answered; refunds: []",
    ]
