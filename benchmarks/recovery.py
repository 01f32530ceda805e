"""The start of a server over many open transactions, all of them idle or all in the middle of a step when it died.

From the start of the process until it says that it serves, beside an empty database, in turns.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks import measuring
from benchmarks.filling import fill
from benchmarks.servers import scratch_directory, server

STEPS = 20
KINDS = ("empty", "idle", "executing")


def _seconds_to_serving(directory: Path, kind: str, count: int) -> float:
    data = directory / "agenttx"
    data.mkdir(parents=True)
    if kind != "empty":
        url = f"sqlite:///{data / 'agenttx.db'}"
        asyncio.run(fill(url, count, steps=STEPS, executing=kind == "executing"))
    before = time.perf_counter()
    with server("agenttx", directory):
        return time.perf_counter() - before


def main() -> None:
    arguments = measuring.parser(__doc__).parse_args()
    count, repetitions = (500, 1) if arguments.quick else (10_000, min(arguments.repetitions, 3))
    with scratch_directory() as directory:
        found = {
            kind: [
                _seconds_to_serving(directory / f"{kind}-{turn}", kind, count) for turn in range(repetitions)
            ]
            for kind in KINDS
        }
    seconds = {kind: measuring.summary(each) for kind, each in found.items()}
    measuring.report(
        "recovery", {"open_transactions": count, "steps_each": STEPS, "seconds_to_serving": seconds}
    )


if __name__ == "__main__":
    main()
