"""``agenttx serve --workers N``: several server processes on one port, and one that looks after them.

The kernel hands each new connection to one of the processes. Each is a server of its own, with a
lease of its own on the shared database, so one that dies is taken over from by the others while
a new one starts. The parent serves nothing: it holds the port, passes SIGTERM on and starts again what dies.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

from agenttx_server.api.listeners import AddressRefused, check_port
from agenttx_server.listen_address import ListenAddress

__all__ = ["EXIT_CANNOT_START", "shared_address", "supervise", "worker_number"]

EXIT_CANNOT_START = 78  # EX_CONFIG of sysexits.h
# Set for the processes and read by them alone: the address that they share, and which of them one is.
SHARED_ADDRESS = "_AGENTTX_SHARED_ADDRESS"
WORKER_NUMBER = "_AGENTTX_WORKER_NUMBER"
LOOK_EVERY_SECONDS = 0.2
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
# One that ran for so long did not die of its start.
STEADY_SECONDS = 60.0


def shared_address() -> ListenAddress | None:
    """Return the address that this process shares with its siblings, None if it has none."""
    shared = os.environ.get(SHARED_ADDRESS)
    return ListenAddress.parse(shared) if shared else None


def worker_number() -> int:
    """Return which of its siblings this process is, from 1; it is the first if it has none."""
    return int(os.environ.get(WORKER_NUMBER, "1"))


def supervise(address: ListenAddress, workers: int) -> int:
    """Run this very command as ``workers`` processes until told to stop; return the exit code.

    Raises:
        AddressRefused: nothing was started.
    """
    with _reserved(address) as shared:
        return _Supervisor(shared, workers).run()


@contextmanager
def _reserved(address: ListenAddress) -> Iterator[ListenAddress]:
    """Hold a port for processes that share it; nobody else gets it meanwhile."""
    if address.port:
        check_port(address)
    family, _, _, _, bound = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind(bound)
        except OSError as error:
            raise AddressRefused(f"can't listen on {address}: {error.strerror}") from error
        # Bound and not listening: the kernel gives it no connection.
        yield ListenAddress(address.host, held.getsockname()[1])


class _Worker:
    """One process and its successors."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.pause = 0.0
        self.start_at = 0.0


class _Supervisor:
    def __init__(self, address: ListenAddress, workers: int) -> None:
        self._address = address
        self._workers = [_Worker(number) for number in range(1, workers + 1)]
        self._told: list[int] = []
        self._log = structlog.get_logger()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda told, _: self._told.append(told))
        self._log.info("starting workers", address=str(self._address), workers=len(self._workers))
        refused = 0
        while not self._told and not refused:
            for worker in self._workers:
                refused = refused or self._look_after(worker)
            time.sleep(LOOK_EVERY_SECONDS)
        self._stop_all()
        return refused

    def _look_after(self, worker: _Worker) -> int:
        """Start a process that isn't there; return its exit code if it says that it can't start as told."""
        now = time.monotonic()
        if worker.process is not None:
            code = worker.process.poll()
            if code is None:
                return 0
            self._let_go(worker)
            if code == EXIT_CANNOT_START:
                return code
            worker.pause = (
                FIRST_PAUSE_SECONDS
                if now - worker.started_at > STEADY_SECONDS
                else min(worker.pause * 2 or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            )
            worker.start_at = now + worker.pause
            self._log.error("worker died", worker=worker.number, code=code, again_in_seconds=worker.pause)
        if now >= worker.start_at and not self._told:
            worker.started_at = now
            worker.process = subprocess.Popen(  # noqa: S603 - our own command line once more
                [sys.executable, *sys.orig_argv[1:]],
                env={
                    **os.environ,
                    SHARED_ADDRESS: str(self._address),
                    WORKER_NUMBER: str(worker.number),
                },
                # Its end tells the worker that this process is gone.
                stdin=subprocess.PIPE,
                # Signals of a terminal come to this process, which passes them on, and not twice.
                start_new_session=True,
            )
        return 0

    def _stop_all(self) -> None:
        """Pass on what this process was told, every time; return when all have ended."""
        passed = 0
        told = self._told or [signal.SIGTERM]
        while any(worker.process is not None for worker in self._workers):
            for number in told[passed:]:
                for worker in self._workers:
                    if worker.process is not None:
                        worker.process.send_signal(number)
            passed = len(told)
            for worker in self._workers:
                if worker.process is not None and worker.process.poll() is not None:
                    self._let_go(worker)
            time.sleep(LOOK_EVERY_SECONDS)

    def _let_go(self, worker: _Worker) -> None:
        if worker.process is not None and worker.process.stdin is not None:
            with suppress(OSError):
                worker.process.stdin.close()
        worker.process = None
