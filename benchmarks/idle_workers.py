"""What workers cost a server that they only wait for: its processor time over a minute, with them and without.

Every worker is a real one with a connection of its own, and heartbeats in the interval that the server asks for. They
live in a few processes beside the server's; only the server's processor time counts, as /proc has it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import agenttx
from benchmarks import measuring, tools
from benchmarks.servers import scratch_directory, server, server_process

CONNECT_SECONDS = 120.0
SETTLE_SECONDS = 10.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _connections(process_id: int) -> int:
    """Return how many sockets a process has open."""
    descriptors = Path(f"/proc/{process_id}/fd")
    found = 0
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(descriptor).startswith("socket:")
    return found


def _processor_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _measure(process_id: int, seconds: float) -> float:
    """Return the share of a core that a process uses while nothing is asked of it, in per cent."""
    time.sleep(SETTLE_SECONDS)
    before, began = _processor_seconds(process_id), time.monotonic()
    time.sleep(seconds)
    return (_processor_seconds(process_id) - before) / (time.monotonic() - began) * 100


def _wait_for_connections(process_id: int, count: int) -> None:
    deadline = time.monotonic() + CONNECT_SECONDS
    while _connections(process_id) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{_connections(process_id)} connections after {CONNECT_SECONDS:g} s, not {count}"
            )
        time.sleep(0.5)


def _run(seconds: float, workers: int, processes: int) -> list[dict[str, Any]]:
    with scratch_directory() as scratch, server("agenttx", scratch) as address:
        process_id = server_process(address)
        with agenttx.Client(address) as client:
            client.health()
        without = _measure(process_id, seconds)
        idle_sockets = _connections(process_id)
        shares = [len(range(first, workers, processes)) for first in range(processes)]
        with contextlib.ExitStack() as stack:
            for share in shares:
                stack.enter_context(tools.workers(address, "idle", share))
            _wait_for_connections(process_id, idle_sockets + workers)
            beside = _measure(process_id, seconds)
    return [
        {"workers": 0, "percent_of_a_core": round(without, 2), "seconds": seconds},
        {"workers": workers, "percent_of_a_core": round(beside, 2), "seconds": seconds},
        {"workers": workers, "percent_of_a_core_above_none": round(beside - without, 2), "seconds": seconds},
    ]


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of one measurement")
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4, help="how many processes the workers live in")
    arguments = parser.parse_args()
    seconds = 5.0 if arguments.quick else arguments.seconds
    measuring.report("idle_workers", _run(seconds, arguments.workers, arguments.processes))


if __name__ == "__main__":
    main()
