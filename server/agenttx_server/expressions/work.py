"""How much an evaluation may have to do, before it is begun.

The library stops after 10,000 iterations, but one iteration may join, search or compare
megabytes: ``[s, s].map(x, x+x+x+x).map(x, x+x+x+x)…`` grows by a factor a link, and no
evaluation can be interrupted. So the work is estimated from above by what is known
beforehand, the text and the sizes of the values that it reads, and refused beyond
:data:`~.limits.MAX_WORK`. The estimate depends on nothing else: no clock, no load.

* Every value read is touched once for each place that names it.
* Each ``+`` or ``,`` may join it with others; where comprehensions are chained their joins multiply.
* A comprehension turns at most as often as what is read has members, and never more than
  10,000 times. A turn may touch all of the variables that its arguments name; what they reach
  through its own variable is touched once over all turns, being parts of one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agenttx_server.expressions.limits import MAX_ITERATIONS
from agenttx_server.expressions.spelling import Read, Spelling

__all__ = ["count_members", "estimated_work"]

_REGULAR_EXPRESSION: Final = 8_192
"""What building one may cost beside reading the text, in bytes touched as quickly: about 50 µs."""

_SEARCH: Final = 1_024
"""Bytes that a search compares in the time another step takes for one."""


def estimated_work(spelling: Spelling, sizes: Mapping[Read, int], members: int, text_length: int) -> int:
    """Bytes that may have to be touched, from above.

    Args:
        spelling: what the expression reads, and where.
        sizes: the bytes of each read value, as canonical JSON.
        members: the members of all arrays and objects among them, at every depth.
        text_length: the expression's length: literals may be long too.
    """
    size = sum(sizes[read] for read in spelling.reads) + text_length
    growth = 1 + spelling.joins
    for macro in spelling.macros:
        growth *= 1 + max(macro.joins, 0)
    work = size * growth
    turns = min(MAX_ITERATIONS, (members + text_length) * growth)
    for macro in spelling.macros:
        by_turn = sum(sizes[read] for read in macro.reads) + size * macro.outer_names
        work += growth * (size * max(macro.own_names, 0) + turns * by_turn)
        work += turns * macro.matches * _REGULAR_EXPRESSION
    if spelling.searches:
        # The naive search compares every place with every byte of the text sought.
        work += (size * growth) ** 2 // _SEARCH * (turns if spelling.macros else 1)
    return work


def count_members(value: Any) -> int:
    """The members of arrays and objects in a JSON value, at every depth."""
    members = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            members += len(item)
            pending += item.values()
        elif isinstance(item, list | tuple):
            members += len(item)
            pending += item
    return members
