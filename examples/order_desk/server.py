"""A real server in a process of its own, with everything that it keeps in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import agenttx

AGENTTX = str(Path(sys.executable).with_name("agenttx"))
START_SECONDS = 120.0  # a first start on a busy machine compiles every module
STOP_SECONDS = 15.0


class ServerDidNotStart(Exception):
    """The server ended, or took too long; the message has the end of its log."""


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """Serve on a free port of the loopback interface and yield the address; stop on leaving."""
    if not Path(AGENTTX).exists():
        raise ServerDidNotStart(f"there is no {AGENTTX}; run `make setup`")
    log = folder / "server.log"
    command = [AGENTTX, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder), "--log-format", "json"]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=environment())
    try:
        yield address_in(log, process)
    except agenttx.AgentTxError as failure:
        # The log goes with the folder, and it may be all that tells what happened.
        failure.add_note(f"The server's log ends:\n{end_of(log)}")
        raise
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address from the log line that says that the server serves."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        lines = log.read_text().splitlines(keepends=True)
        for line in lines:
            if line.startswith("{") and line.endswith("\n") and json.loads(line).get("event") == "serving":
                return str(json.loads(line)["address"])
        if ended:
            raise ServerDidNotStart(f"the server ended with exit code {process.returncode}:\n{end_of(log)}")
        time.sleep(0.02)
    raise ServerDidNotStart(f"the server did not serve within {START_SECONDS:.0f} s")


def end_of(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-5:])


def draw_graph(address: str, transaction_id: str, cause: tuple[str, str]) -> None:
    """Have the command line draw the dependency graph on our own stdout."""
    sys.stdout.flush()
    command = [AGENTTX, "tx", "graph", transaction_id, "--address", address, "--cause", *cause]
    subprocess.run(command, env=environment(), check=True)


def environment() -> dict[str, str]:
    """The demonstration is the same whatever AGENTTX_* variables its user has set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AGENTTX_")}
