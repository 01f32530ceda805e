"""The servers of a run: started, killed, started again on the same data; and calls that live through it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from tests.crash.starter import fork_process, when_ended
from tests.support.crash_tools import LOG_VARIABLE, REFUSES_LATE_VARIABLE
from tests.support.running_server import CHANNEL_OPTIONS

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from agenttx_server import failpoints

__all__ = ["Fleet", "Life", "Refused", "ServerHangs", "open_fleet"]

_START_SECONDS = 60.0
# A call that takes longer than this on a server that lives is lost: no tool takes that long.
_CALL_SECONDS = 60.0
_HEALTH_PAUSE_SECONDS = 0.005
# Of the calls to a server that stands still, how many go to another one at once.
_LEFT_SHARE = 0.7
_UNANSWERED = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)


class ServerHangs(AssertionError):
    """A server that lives did not answer, or did not come to serve."""


class Refused(Exception):
    """A call was refused by a server, for good."""

    def __init__(
        self, method: str, error: grpc.aio.AioRpcError, reason: str, metadata: dict[str, str]
    ) -> None:
        super().__init__(f"{method}: {error.code().name} {reason}: {error.details()}")
        self.code = error.code()
        self.reason = reason
        self.message = error.details() or ""
        self.metadata = metadata


@dataclass(eq=False)
class Life:
    """One server process from its start to its end. ``served_after`` is how long it took until it served, in seconds.

    ``left`` are calls whose senders went on without an answer.
    """

    index: int
    pid: int
    channel: grpc.aio.Channel
    started_at: float
    served_after: float | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    calls: set[Any] = field(default_factory=set)
    left: set[Any] = field(default_factory=set)

    @property
    def stub(self) -> Any:
        return transaction_pb2_grpc.AgentTxServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def kill(self) -> None:
        """Send SIGKILL."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def leave_calls(self, chance: random.Random, share: float) -> None:
        """Have the senders of some of the calls that are under way turn to another server."""
        for call in sorted(self.calls, key=id):
            if chance.random() < share:
                self.left.add(call)
                call.cancel()


class Fleet:
    """``servers`` servers on one database. Made by :func:`open_fleet`."""

    def __init__(
        self,
        directory: Path,
        database_url: str,
        servers: int,
        settings: dict[str, str],
        *,
        has_workers: bool = False,
        acts_late: bool = False,
        data_directory: Path | None = None,
    ) -> None:
        self.directory = directory
        self.world_log = directory / "world.log"
        self.servers = servers
        self.has_workers = has_workers
        self.acts_late = acts_late or has_workers
        self._data_directory = data_directory or directory
        self.lives: list[Life] = []
        self._database_url = database_url
        self._settings = settings
        self._serving: dict[int, Life] = {}
        self._some_serve = asyncio.Event()

    @property
    def is_shared(self) -> bool:
        """Whether the database may have several servers."""
        return bool(self._database_url)

    @property
    def repeats_undo(self) -> bool:
        """Whether a server may run undo again whose outcome it could not record."""
        return self.is_shared or self._data_directory != self.directory

    @property
    def outbox_file(self) -> Path:
        """The file that all servers deliver to: one, so that its order is the order in which effects went out."""
        return self.directory / "outbox.jsonl"

    def worker_socket(self, index: int) -> Path:
        """Where workers reach a server, whichever of its lives it is in."""
        return self.directory / f"{index}.sock"

    def clock_file(self, index: int) -> Path:
        """By how much a server's time of day is put forward (warm_start.put_clock)."""
        return self.directory / f"clock-{index}"

    def log_text(self) -> str:
        """What the servers wrote to stderr."""
        return "".join(path.read_text() for path in sorted(self.directory.glob("server-*.log")))

    # --- lives ----------------------------------------------------------------------------

    async def start(self, index: int = 0, points: str = "", seed: str = "") -> Life:
        """Start a server process and return at once; :meth:`wait_serving` waits for it."""
        socket = self.directory / f"{index}-{len(self.lives)}.sock"
        environment = {
            "AGENTTX_DATA_DIR": str(self._data_dir(index)),
            "AGENTTX_LISTEN": f"unix:{socket}",
            "AGENTTX_OUTBOX_FILE": str(self.outbox_file),
            "AGENTTX_LOG_LEVEL": "warning",
            "AGENTTX_LOG_FORMAT": "json",
            LOG_VARIABLE: str(self.world_log),
            failpoints.VARIABLE: points,
            failpoints.SEED_VARIABLE: seed,
            "stderr": str(self.directory / f"server-{index}.log"),
            "clock": str(self.clock_file(index)),
        }
        if not self.has_workers:
            environment["AGENTTX_TOOLS"] = "tests.support.crash_tools"
        if self.acts_late:
            environment[REFUSES_LATE_VARIABLE] = "yes"
        if self._database_url:
            environment["AGENTTX_DATABASE_URL"] = self._database_url
        environment |= {f"AGENTTX_{name.upper()}": value for name, value in self._settings.items()}
        started_at = time.monotonic()
        pid = fork_process(environment)
        channel = grpc.aio.insecure_channel(
            f"unix:{socket}",
            options=[
                *CHANNEL_OPTIONS,
                ("grpc.initial_reconnect_backoff_ms", 20),
                ("grpc.min_reconnect_backoff_ms", 20),
                ("grpc.max_reconnect_backoff_ms", 50),
            ],
        )
        _point(self.worker_socket(index), socket)
        life = Life(index, pid, channel, started_at)
        self.lives.append(life)
        when_ended(pid, partial(self._ended, life))
        return life

    async def wait_serving(self, life: Life) -> bool:
        """Return True once the server serves, False if it ended before."""
        health = health_pb2_grpc.HealthStub(life.channel)
        deadline = life.started_at + _START_SECONDS
        while not life.ended.is_set():
            with suppress(grpc.aio.AioRpcError):
                answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                if answer.status == health_pb2.HealthCheckResponse.SERVING and await self._has_tools(life):
                    life.served_after = time.monotonic() - life.started_at
                    self._serving[life.index] = life
                    self._some_serve.set()
                    return True
            if time.monotonic() > deadline:
                raise ServerHangs(f"server {life.index} does not serve after {_START_SECONDS} s")
            await asyncio.sleep(_HEALTH_PAUSE_SECONDS)
        return False

    async def _has_tools(self, life: Life) -> bool:
        """Whether a server can run steps: until a worker has connected it knows of no tool but its own."""
        if not self.has_workers:
            return True
        answer = await life.stub.ListTools(pb.ListToolsRequest(), timeout=1.0)
        return any(tool.name.startswith("crash.") for tool in answer.tools)

    async def kill(self, life: Life) -> None:
        """Send SIGKILL and wait for the end."""
        life.kill()
        await life.ended.wait()

    async def terminate(self, life: Life) -> None:
        """Send SIGTERM and wait for the end."""
        os.kill(life.pid, signal.SIGTERM)
        async with asyncio.timeout(_START_SECONDS):
            await life.ended.wait()

    def _data_dir(self, index: int) -> Path:
        return self._data_directory / f"data-{index}"

    async def freeze(self, life: Life, seconds: float, chance: random.Random) -> None:
        """Stop a server that serves for a while, as a machine stands still; most of its callers turn to another one."""
        life.signal(signal.SIGSTOP)
        try:
            if self.servers > 1:
                self._is_gone(life)
            life.leave_calls(chance, _LEFT_SHARE)
            await asyncio.sleep(seconds)
        finally:
            life.signal(signal.SIGCONT)
        await self.wait_serving(life)

    def _ended(self, life: Life) -> None:
        life.ended.set()
        self._is_gone(life)

    def _is_gone(self, life: Life) -> None:
        if self._serving.get(life.index) is life:
            del self._serving[life.index]
            if not self._serving:
                self._some_serve.clear()

    # --- calls ----------------------------------------------------------------------------

    async def call(self, method: str, request: Any, chance: random.Random) -> Any:
        """Make a call, again and again until a server answers it. Raises Refused, ServerHangs."""
        while True:
            life = await self.pick(chance)
            call = getattr(life.stub, method)(request, timeout=_CALL_SECONDS)
            life.calls.add(call)
            try:
                return await call
            except asyncio.CancelledError:
                if call not in life.left:
                    raise
            except grpc.aio.AioRpcError as error:
                info = _error_info(error)
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not life.ended.is_set():
                    raise ServerHangs(f"{method} has no answer after {_CALL_SECONDS} s: {request}") from error
                unanswered = error.code() in _UNANSWERED and not info.reason
                come_again = error.code() is grpc.StatusCode.UNAVAILABLE or info.reason == "OVERLOADED"
                if not unanswered and not come_again:
                    raise Refused(method, error, info.reason, dict(info.metadata)) from None
            finally:
                life.calls.discard(call)
                life.left.discard(call)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await life.ended.wait()

    async def pick(self, chance: random.Random) -> Life:
        """Return a server that serves, drawn by chance; wait for one. Raises TimeoutError."""
        async with asyncio.timeout(_START_SECONDS):
            while True:
                await self._some_serve.wait()
                if serving := [life for _, life in sorted(self._serving.items())]:
                    return chance.choice(serving)


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status else ():
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    return info


def _point(link: Path, socket: Path) -> None:
    """Have a link point to a socket, from one moment to the next."""
    new = link.with_suffix(".new")
    new.symlink_to(socket)
    new.rename(link)


@asynccontextmanager
async def open_fleet(
    directory: Path,
    *,
    database_url: str = "",
    servers: int = 1,
    has_workers: bool = False,
    acts_late: bool = False,
    data_directory: Path | None = None,
    **settings: Any,
) -> AsyncIterator[Fleet]:
    """Get ready to start servers; whatever runs at the end is killed.

    ``database_url`` is empty for a file of its own. ``has_workers``: the tools are in workers (crew), not in the servers.
    ``acts_late``: what runs tools may stand still, and go on when it is too late. ``data_directory`` is where the servers' data is.
    """
    named = {name: str(value) for name, value in settings.items()}
    fleet = Fleet(
        directory,
        database_url,
        servers,
        named,
        has_workers=has_workers,
        acts_late=acts_late,
        data_directory=data_directory,
    )
    try:
        yield fleet
    finally:
        for life in fleet.lives:
            if not life.ended.is_set():
                life.kill()
        await asyncio.gather(*(life.channel.close() for life in fleet.lives))
