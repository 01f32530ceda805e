"""Whose a state write of a step is, and when the step made it: both are in its sequence.

The writes of a step lie in spans: first what its own code wrote before any sub-step, then what sub-step 1
wrote, what its own code wrote after that, and so on. So they are in the order in which they were
made, and those of one sub-step are a range.
"""

from __future__ import annotations

__all__ = ["MOST_SUB_STEPS", "own_span", "sub_step_of", "sub_step_span"]

_SPAN = 1 << 32
# The greatest sequence is below 2^53, which JSON and floats keep.
MOST_SUB_STEPS = 1 << 20


def own_span(sub_steps_before: int) -> int:
    """Return the sequence below the writes that a step's own code makes after so many sub-steps."""
    return 2 * sub_steps_before * _SPAN


def sub_step_span(sub_step: int) -> tuple[int, int]:
    """Return the sequences of a sub-step's writes: greater than the first, at most the second."""
    first = (2 * sub_step - 1) * _SPAN
    return first, first + _SPAN - 1


def sub_step_of(sequence: int) -> int:
    """Return the sub-step that made a write, 0 for the step's own code."""
    span = sequence // _SPAN
    return (span + 1) // 2 if span % 2 else 0
