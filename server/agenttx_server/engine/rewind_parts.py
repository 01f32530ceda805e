"""How a rewind of very many state rows is cut, so that others can write in between.

One commit that removes 100,000 rows takes half a second, in which nobody else's step is committed. So the newest steps'
rows are removed first, some thousands a commit, while the pending rewind is durable already; what is left goes in
the rewind's last commit as ever. Until then the transaction's state is that of an ever earlier step. A crash in between is one
within a rewind: it is gone on with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["cut", "may_be_cut"]

MOST_ROWS_AT_ONCE = 6_000
"""A rewind that removes no more state rows is one commit."""
ROWS_A_PART = 2_000


def may_be_cut(most_rows: int | None) -> bool:
    """Whether a rewind of a transaction with no more state rows than these (None: unknown) may be more than one commit."""
    return most_rows is None or most_rows > MOST_ROWS_AT_ONCE


def cut(rows_by_step: Sequence[tuple[int, int]], whole: Collection[int] = ()) -> list[list[int]]:
    """Return the steps whose rows are removed ahead of the last commit, a list a commit, newest first.

    ``rows_by_step`` are the steps that are rewound, ascending, and how many state rows each has; empty if they are few enough
    for one commit. Steps of ``whole`` are left to the last commit. A step is never cut in two.
    """
    left = sum(rows for _, rows in rows_by_step)
    if left <= MOST_ROWS_AT_ONCE:
        return []
    parts: list[list[int]] = []
    part: list[int] = []
    size = 0
    for step, rows in reversed(rows_by_step):
        if left - size <= ROWS_A_PART:
            break
        if step in whole:
            continue
        if part and size + rows > ROWS_A_PART:
            parts.append(part)
            left, part, size = left - size, [], 0
        part.append(step)
        size += rows
    return [*parts, part] if part else parts
