"""The real server for tests: in this process on a free loopback port, or as a process of its own.

    async with running_server() as server:
        await server.stub.BeginTransaction(...)

    with server_process(data_dir) as process:
        channel = grpc.insecure_channel(process.address)

Own tools: ``running_server(tools=("tests.support.my_tools:TOOLS",))``. Any setting can be given by
its name. Both keep everything in a temporary directory unless ``data_dir`` is given.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from agenttx.v1 import transaction_pb2_grpc
from agenttx_server.main import Server, open_server
from agenttx_server.settings import Settings, load_settings

REPOSITORY = Path(__file__).resolve().parents[2]
# This tree's own packages, whatever is installed.
PYTHONPATH = os.pathsep.join(str(REPOSITORY / part) for part in ("", "server", "client"))
MIB = 1 << 20
START_SECONDS = 120.0
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 8 * MIB),
    ("grpc.max_send_message_length", 8 * MIB),
    ("grpc.enable_retries", 0),
    # Channels of one address share connections within a process unless told not to.
    ("grpc.use_local_subchannel_pool", 1),
)
_LAUNCH = (
    "import sys\n"
    "from agenttx_server.main import run\n"
    "from agenttx_server.settings import BadSettings, load_settings\n"
    "try:\n"
    "    settings = load_settings()\n"
    "except BadSettings as bad:\n"
    "    sys.exit(f'agenttx: {bad}')\n"
    "sys.exit(run(settings))\n"
)


@dataclass(frozen=True)
class RunningServer:
    """A server in this process, and a channel and a stub to it."""

    server: Server
    settings: Settings
    channel: grpc.aio.Channel

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def stub(self) -> transaction_pb2_grpc.AgentTxServiceStub:
        return transaction_pb2_grpc.AgentTxServiceStub(self.channel)


@asynccontextmanager
async def running_server(**settings: Any) -> AsyncIterator[RunningServer]:
    """Serve in this process; settings by name, the rest as a user would have it but for the listen address and shedding."""
    with tempfile.TemporaryDirectory(prefix="agenttx-test-") as scratch:
        # Its loop is the test's too, which may be busy with other things.
        own = {
            "data_dir": Path(scratch),
            "listen": "127.0.0.1:0",
            "fs_adopt": True,
            "overload_step_seconds": 0,
            "overload_callers": 0,
        }
        given = own | settings
        chosen = load_settings(given)
        async with (
            open_server(chosen) as server,
            grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel,
        ):
            yield RunningServer(server, chosen, channel)


@dataclass
class ServerProcess:
    """A server in a process of its own. ``log`` holds the lines of its stderr so far."""

    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    address: str = ""
    _lines: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def events(self) -> list[dict[str, Any]]:
        """Return the log's structured lines."""
        return [json.loads(line) for line in self.log if line.startswith("{")]

    def wait_for_event(self, event: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """Return the next log line that tells of an event; AssertionError if the server ends before."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise AssertionError(f"no {event!r} within {seconds} s; log: {self.log}") from None
            if line is None:
                raise AssertionError(f"the server ended before {event!r}; log: {self.log}")
            if line.startswith("{") and json.loads(line).get("event") == event:
                return dict(json.loads(line))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, as a crash does, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def wait(self, seconds: float = START_SECONDS) -> int:
        """Return the exit code once the process has ended and its log is read."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def read_log(self) -> None:
        """Collect stderr from now on, on a thread of its own."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            self._lines.put(line)
        self._lines.put(None)


def start_process(
    data_dir: Path,
    environment: dict[str, str] | None = None,
    *,
    prefix: tuple[str, ...] = (),
    **settings: Any,
) -> ServerProcess:
    """Start a server and return at once; whoever starts it ends it. Settings go in as variables.

    ``prefix`` is a command that starts it, given the server's own command as arguments.
    """
    variables = {
        "data_dir": data_dir,
        "listen": "127.0.0.1:0",
        "log_format": "json",
        "fs_adopt": True,
    } | settings
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", _LAUNCH],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
        env=_without_own_settings(os.environ)
        | {f"AGENTTX_{name.upper()}": _as_variable(value) for name, value in variables.items()}
        | {"PYTHONPATH": PYTHONPATH}
        | (environment or {}),
    )
    started = ServerProcess(process)
    started.read_log()
    return started


@contextmanager
def server_process(data_dir: Path, **settings: Any) -> Iterator[ServerProcess]:
    """Start a server and wait until it serves; kill it on leaving if it still runs."""
    started = start_process(data_dir, **settings)
    try:
        started.address = started.wait_for_event("serving")["address"]
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.wait()


def _as_variable(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value)


def _without_own_settings(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("AGENTTX_")}
