"""What an agent saves by the server when it meets failures: counts of the benchmark, which are the same in every run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.agent_recovery import SCENARIOS, Task, run_naively, run_over_server
from tests.support.running_server import server_process


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir: Path = tmp_path_factory.mktemp("agent-recovery")
    with server_process(data_dir) as process:
        yield process.address


@pytest.mark.parametrize("steps", [8, 64])
def test_a_silent_mistake_costs_what_was_done_since_it_and_leaves_nothing_wrong(address: str, steps: int):
    run = run_over_server(Task("silent_root_cause", steps), address)

    # Up to the step that fails on it, and once more from the step that made it: 97 of 64 steps.
    assert run.tool_calls == steps * 3 // 4 + (steps - steps // 4 + 1)
    assert (run.finished, run.wrong_effects, run.duplicate) == (True, 0, 0)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_whatever_the_trouble_no_effect_is_wrong_in_the_end(address: str, scenario: str):
    task = Task(scenario, 8)

    run, naive = run_over_server(task, address), run_naively(task)

    assert run.finished == naive.finished == (scenario != "unrecoverable")
    assert (run.duplicate, run.leaked, run.orphaned) == (0, 0, 0)
    assert naive.wrong_effects > 0
    assert run.feedback_tokens < naive.feedback_tokens / 2


def test_the_agent_alone_begins_anew_and_does_everything_twice():
    run = run_naively(Task("silent_root_cause", 64))

    assert run.tool_calls == 47 + 3 + 64
    assert run.duplicate == run.orphaned == 46
