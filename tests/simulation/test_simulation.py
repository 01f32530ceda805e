"""Histories of whole clusters, each from a seed: the first half of those that every run of the tests plays.

    make test-simulation SIMULATION_ARGS='--seed 100000 --count 20000'

plays others, and more of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.chunks import CHUNKS, assert_chunk_holds, told
from tests.simulation.simulator import Outcome, play, quiet


@pytest.mark.parametrize("chunk", CHUNKS[::2])
def test_histories_hold_the_invariants(chunk: int) -> None:
    assert_chunk_holds(chunk)


@pytest.mark.parametrize("seed", [8456, 13375, 13989, 15907, 18957])
def test_histories_that_once_broke_an_invariant_hold_it(seed: int) -> None:
    with quiet():
        outcome = play(seed)
    assert not outcome.failure, told(outcome)


def test_a_history_is_the_same_each_time() -> None:
    with quiet():
        for seed in (3, 8, 21):
            first, again = play(seed), play(seed)
            assert [str(entry) for entry in first.world.log] == [str(entry) for entry in again.world.log]
            assert first.callbacks == again.callbacks


def test_a_failing_seed_is_told_with_the_command_that_replays_it() -> None:
    with quiet():
        outcome = play(5)
    text = told(Outcome(outcome.plan, outcome.world, "Breach: something", 0, 0.0))
    assert text.startswith("Breach: something")
    assert text.endswith("python -m tests.simulation --seed 5 --trace")
    assert (Path(__file__).parent / "__main__.py").exists()
