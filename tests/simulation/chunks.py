"""Seeds played in chunks under pytest; a failure tells the command that replays it."""

from __future__ import annotations

from tests.simulation.simulator import Outcome, play, quiet

__all__ = ["CHUNKS", "assert_chunk_holds", "told"]

# Under ``--dist loadfile`` a worker takes a whole file, so there are two of them.
CHUNKS = range(12)
_HISTORIES_A_CHUNK = 150


def assert_chunk_holds(chunk: int) -> None:
    """Play the histories of a chunk."""
    first = chunk * _HISTORIES_A_CHUNK
    with quiet():
        for seed in range(first, first + _HISTORIES_A_CHUNK):
            outcome = play(seed)
            assert not outcome.failure, told(outcome)


def told(outcome: Outcome) -> str:
    """What went wrong, and how to see it again."""
    seed = outcome.plan.seed
    return f"{outcome.failure}\n\nseed {seed}: to see what happened, python -m tests.simulation --seed {seed} --trace"
