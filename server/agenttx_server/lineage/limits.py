"""Bounds of pipelines and their records. Beyond them a definition is refused, an answer a failed call."""

from typing import Final

__all__ = [
    "MAX_ACTIONS",
    "MAX_CONCURRENCY",
    "MAX_DEPENDENCIES",
    "MAX_DOCUMENT_BYTES",
    "MAX_GROUPED",
    "MAX_MERGED",
    "MAX_NAME_LENGTH",
    "MAX_PROMPT_BYTES",
    "MAX_RENDERED_BYTES",
    "MAX_ROWS",
    "MAX_ROWS_PER_CALL",
    "MAX_ROWS_TOGETHER",
    "MAX_VERSIONS",
]

MAX_ACTIONS: Final = 200
"""Actions of a pipeline, versions counted one by one. Ancestry is followed by recursion, three frames an action."""

MAX_DEPENDENCIES: Final = 100
"""Dependencies of one action, versions counted one by one."""

MAX_VERSIONS: Final = 100
"""Versions of one action."""

MAX_NAME_LENGTH: Final = 128

MAX_DOCUMENT_BYTES: Final = 1024 * 1024
"""Bytes of a definition's text."""

MAX_PROMPT_BYTES: Final = 64 * 1024
"""Bytes of a prompt's template."""

MAX_RENDERED_BYTES: Final = 1024 * 1024
"""Bytes of a rendered prompt."""

MAX_ROWS: Final = 1_000_000
"""Rows that one run is given."""

MAX_ROWS_TOGETHER: Final = 25_000
"""Rows of a run in one transaction: all that comes of them is in memory together."""

MAX_ROWS_PER_CALL: Final = 10_000
"""Records that one answer of a tool may make."""

MAX_MERGED: Final = 10_000
"""Merged inputs of one action in one root: the product of branches that fanned out."""

MAX_GROUPED: Final = 100_000
"""Records that one call of a barrier action gets."""

MAX_CONCURRENCY: Final = 256
"""Roots that run side by side."""
