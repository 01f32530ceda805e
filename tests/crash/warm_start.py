"""Starts servers and workers without their second of imports: a process that has made them, and forks one for each.

It reads JSON lines, the environment of a process each (and the file its stderr goes to, as `stderr`; the addresses
of servers, as `worker_of`, if it is to be a worker; the file that its time of day follows, as `clock`), and answers each with the process id. At the end of its stdin it
kills those that are left. What a server does from there on is what `agenttx serve` does after its imports: load
the settings, run.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from tests.support import crash_worker

# What a start imports late, each time anew in a fork of this process unless it was here.
from agenttx_server import main as server
from agenttx_server import system_ports
from agenttx_server.settings import load_settings

_OFFSET = struct.Struct("q")


def put_clock(path: Path, seconds: float) -> None:
    """Have the servers whose clock is this file tell a time of day that is so much ahead."""
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        file.write(_OFFSET.pack(int(seconds * 1e9)))


def follow_clock(path: Path) -> None:
    """Have this process's ports tell the time of day by a file."""
    if not path.exists():
        put_clock(path, 0.0)
    with path.open("r+b") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size)
    ahead = SimpleNamespace(
        time_ns=lambda: time.time_ns() + int(_OFFSET.unpack_from(offset)[0]), monotonic=time.monotonic
    )
    system_ports.time = ahead  # type: ignore[assignment]


def serve(environment: dict[str, str]) -> NoReturn:
    """Be a server or a worker, from here to the end of the process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(environment.pop("stderr"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    worker_of = environment.pop("worker_of", "")
    if clock := environment.pop("clock", ""):
        follow_clock(Path(clock))
    os.environ.update(environment)
    status = 1
    try:
        status = crash_worker.run(worker_of.split()) if worker_of else server.run(load_settings())
    finally:
        os._exit(status)


def main() -> None:
    """Fork servers until the end of stdin."""
    # Ended ones are nobody's concern here: whoever asked for them follows their process ids.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    started = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            serve(json.loads(line))
        started.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in started:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
