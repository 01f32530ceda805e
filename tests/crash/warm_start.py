"""Starts servers and workers without their second of imports: a process that has made them, and forks one for each.

It reads JSON lines, the environment of a process each (and the file its stderr goes to, as `stderr`; the addresses
of servers, as `worker_of`, if it is to be a worker), and answers each with the process id. At the end of its stdin it
kills those that are left. What a server does from there on is what `agenttx serve` does after its imports: load
the settings, run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NoReturn

from tests.support import crash_worker

# What a start imports late, each time anew in a fork of this process unless it was here.
from agenttx_server import main as server
from agenttx_server.settings import load_settings


def serve(environment: dict[str, str]) -> NoReturn:
    """Be a server or a worker, from here to the end of the process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(environment.pop("stderr"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    worker_of = environment.pop("worker_of", "")
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
