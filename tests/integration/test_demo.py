"""The demonstration plays to its end, says so, leaves nothing behind, and fails when a fact doesn't hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def play(script: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run the demonstration, without a terminal, after some lines that may spoil it."""
    return subprocess.run(
        [sys.executable, "-c", f"{script}\nimport sys, demo\nsys.exit(demo.main())"],
        cwd=scratch,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES), "TMPDIR": str(scratch), "AGENTTX_LISTEN": "nonsense"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory):
    scratch = tmp_path_factory.mktemp("demo")
    return scratch, play("", scratch)


def test_it_ends_well_and_leaves_nothing(played):
    scratch, done = played
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith("facts hold.")
    assert list(scratch.iterdir()) == []


def test_it_tells_the_failure_the_hint_the_decision_and_its_path(played):
    _, done = played
    assert "10 ✗ record.insert" in done.stdout
    assert "Hint: customer_id cus_120 is not present in table customers." in done.stdout
    assert "DEPENDENCY_JUMP to step 3" in done.stdout
    assert "10.customer_id ← 6.customer_id ← 3.customer_id" in done.stdout
    assert "gone: orders, orders/ord_9001.txt; as before: ledger.csv" in done.stdout
    assert "1 staged before, 0 now" in done.stdout
    assert "Committed: 14 steps" in done.stdout


def test_it_draws_the_graph_with_the_corrected_choice(played):
    _, done = played
    assert " 1 record.insert  ◀ root cause" in done.stdout
    assert "root cause: 10.customer_id ← 6.customer_id ← 3.customer_id ← 1.id" in done.stdout


def test_it_is_plain_text_without_a_terminal(played):
    _, done = played
    assert "\x1b" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


def test_it_is_played_to_its_end_where_the_terminal_has_ascii_only(tmp_path):
    done = play("import sys; sys.stdout.reconfigure(encoding='ascii')", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert " 3 ? kv.put" in done.stdout


@pytest.mark.parametrize(
    ("spoiled", "complaint"),
    [
        pytest.param(
            "import order_desk.model as m; m.CUSTOMER_IN_THE_FOOTER = 'cus_101'",
            "facts do not hold",
            id="the agent makes no mistake",
        ),
        pytest.param(
            "import order_desk.model as m\n"
            "import agenttx\n"
            "m.SCRIPT = (*m.SCRIPT[:6], lambda done, told: agenttx.Step('kv.put', {'key': 'k', 'value': 0}), *m.SCRIPT[7:])",
            "facts do not hold",
            id="the order sheet is never written",
        ),
        pytest.param(
            "import order_desk.facts as f; f.LEDGER_AFTER += 'more'",
            "✗ the disk holds exactly the right files",
            id="a file is not as expected",
        ),
        pytest.param(
            "import order_desk.facts as f; f.Facts.AT_LEAST = 99", "was not played", id="a part is left out"
        ),
        pytest.param("import demo; demo.MOST_STEPS = 3", '"event":"rpc"', id="the agent never ends"),
        pytest.param(
            "import order_desk.server as s; s.AGENTTX = '/nowhere/agenttx'",
            "make setup",
            id="nothing is installed",
        ),
        pytest.param(
            "import order_desk.server as s; s.environment = lambda: {'AGENTTX_MAX_LOCAL_DEPTH': 'x'}",
            "exit code 2",
            id="the server does not start",
        ),
    ],
)
def test_it_fails_and_says_why_when_something_is_not_as_it_should_be(tmp_path, spoiled, complaint):
    done = play(spoiled, tmp_path)
    assert done.returncode == 1
    assert complaint in done.stdout
    assert "Traceback" not in done.stderr
