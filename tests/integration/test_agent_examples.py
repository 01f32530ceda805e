"""The example agents play to their end, say so, leave nothing behind, and fail when the outcome isn't right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def play(name: str, scratch: Path, spoiled: str = "") -> subprocess.CompletedProcess[str]:
    """Run an example, after some lines that may spoil it."""
    return subprocess.run(
        [sys.executable, "-c", f"{spoiled}\nimport sys, {name}\nsys.exit({name}.main())"],
        cwd=scratch,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES), "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_trip_for_the_wrong_person_is_refunded_and_the_books_balance(tmp_path):
    done = play("travel_booking", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    undone = lines.index("↩ cancelled the car of step 4")
    assert lines[undone : undone + 4] == [
        "↩ cancelled the car of step 4",
        "↩ cancelling the hotel: HTTP 503: try again later; the server tries again",
        "↩ cancelled the hotel of step 3",
        "↩ cancelled the flight of step 2",
    ]
    assert "DEPENDENCY_JUMP: the value came from there: step 5 ← step 1" in lines
    assert lines[-1] == "The books balance: one trip, booked and paid; the wrong one is refunded."
    assert list(tmp_path.iterdir()) == []


def test_books_that_do_not_balance_are_told(tmp_path):
    spoiled = (
        "import trip_desk.tools as t\n"
        "real = t.request\n"
        "t.request = lambda method, *rest: {} if method == 'DELETE' else real(method, *rest)"
    )
    done = play("travel_booking", tmp_path, spoiled)
    assert (done.returncode, done.stderr) == (1, "")
    assert "The books are wrong." in done.stdout


def test_a_wrong_edit_is_undone_on_disk_and_leaves_the_conversation(tmp_path):
    done = play("coding_agent", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step 6  ✗ code.test  Hint: test_cents_are_exact failed: 1998 != 1999." in done.stdout
    assert "DEPENDENCY_JUMP: steps 3 to 6 are undone" in done.stdout
    assert "on disk, changed since the start: nothing" in done.stdout
    assert "the conversation had 10 messages, and has 5" in done.stdout
    assert "step 6  ✓ code.test  all tests pass" in done.stdout
    assert done.stdout.endswith("Changed on disk: CHANGES.md, shop/cart.py, shop/money.py.\n")
    assert list(tmp_path.iterdir()) == []


def test_the_same_by_mcp(tmp_path):
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    done = play("coding_agent_mcp", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "| Step 6 (code.test) failed. Hint: test_cents_are_exact failed: 1998 != 1999." in done.stdout
    assert "| Next: call run_step with {" in done.stdout
    assert "on disk, changed since the start: nothing" in done.stdout
    assert "is committed: 6 steps" in done.stdout
    assert done.stdout.endswith("Changed on disk: CHANGES.md, shop/cart.py, shop/money.py.\n")
    assert list(tmp_path.iterdir()) == []
