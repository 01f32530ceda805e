"""A worker that offers the tools of tests.support.crash_tools, to be killed: `python -m tests.support.crash_worker ADDRESS...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.support.crash_tools import book, look, send, set_outside, write

from agenttx.worker import Worker

__all__ = ["run"]


def run(addresses: Sequence[str]) -> int:
    """Serve the servers at these addresses until SIGTERM."""
    Worker(addresses, tools=[look, write, set_outside, book, send], concurrency=16, drain_seconds=10.0).run()
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
