"""The bounds of graphs. What is beyond them is LIMIT_OUT_OF_RANGE, or an error of the run."""

from __future__ import annotations

from typing import Final

__all__ = [
    "DEFAULT_MAX_TOTAL_STEPS",
    "DEFAULT_RECURSION_LIMIT",
    "MAX_ARGUMENTS_BYTES",
    "MAX_CHANNELS",
    "MAX_CONCURRENCY",
    "MAX_CONDITIONAL_EDGES",
    "MAX_EDGES",
    "MAX_LABEL_BYTES",
    "MAX_NAME_LENGTH",
    "MAX_NODES",
    "MAX_RECURSION_LIMIT",
    "MAX_RETRY_ATTEMPTS",
    "MAX_ROUTES",
    "MAX_STATE_BYTES",
    "MAX_SUBGRAPH_DEPTH",
    "MAX_TASKS",
    "MAX_TEXT_BYTES",
    "MAX_TIMEOUT_US",
    "MAX_TOTAL_STEPS",
    "MAX_VISITS",
    "MAX_WAITING_EDGES",
]

MAX_NAME_LENGTH: Final = 128
MAX_TEXT_BYTES: Final = 4096
MAX_LABEL_BYTES: Final = 256
MAX_ARGUMENTS_BYTES: Final = 64 << 10

MAX_NODES: Final = 1_000
MAX_CHANNELS: Final = 1_000
MAX_EDGES: Final = 10_000
MAX_WAITING_EDGES: Final = 1_000
MAX_CONDITIONAL_EDGES: Final = 1_000
MAX_ROUTES: Final = 1_000

DEFAULT_RECURSION_LIMIT: Final = 50
MAX_RECURSION_LIMIT: Final = 100_000
DEFAULT_MAX_TOTAL_STEPS: Final = 1_000
MAX_TOTAL_STEPS: Final = 1_000_000
MAX_CONCURRENCY: Final = 1_000
MAX_VISITS: Final = 100_000
MAX_RETRY_ATTEMPTS: Final = 100
MAX_TIMEOUT_US: Final = 7 * 86_400 * 1_000_000
"""A week: of timeouts and retry intervals."""

MAX_STATE_BYTES: Final = 4 << 20
"""Of the state as canonical JSON, at the fold."""

MAX_TASKS: Final = 10_000
"""In one superstep."""

MAX_SUBGRAPH_DEPTH: Final = 25
