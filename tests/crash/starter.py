"""The process that forks servers and workers (warm_start): one for this process, started when first needed."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache

from tests.support.running_server import PYTHONPATH, REPOSITORY

__all__ = ["fork_process", "when_ended"]


def fork_process(environment: dict[str, str]) -> int:
    """Return the process id of a new server or worker (see warm_start); blocks for a moment."""
    starter = _starter()
    assert starter.stdin is not None
    assert starter.stdout is not None
    starter.stdin.write(json.dumps(environment).encode() + b"\n")
    starter.stdin.flush()
    return int(starter.stdout.readline())


def when_ended(pid: int, ended: Callable[[], None]) -> None:
    """Call a function in this loop once a process has ended, at once if it has."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        ended()
        return

    def readable() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        ended()

    loop.add_reader(descriptor, readable)


@cache
def _starter() -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTTX_")}
    starter = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.warm_start"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env=inherited | {"PYTHONPATH": PYTHONPATH},
    )
    atexit.register(starter.communicate)
    assert starter.stdout is not None
    if starter.stdout.readline() != b"ready\n":
        raise AssertionError("no server can be started")
    return starter
