"""A worker in the agent's own process, for tools that live there.

A step that such a tool runs is recorded before it begins and settled by its effect class if the process dies, like
any other worker's. That is why local tools are hosted, and not run first and told of afterwards.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import grpc

from agenttx.endpoint import Tls
from agenttx.errors import ConnectionFailed
from agenttx.graph import GraphBuilder
from agenttx.tools import AnyTool
from agenttx.worker import Worker

__all__ = ["InProcessWorker"]

_LOOK_SECONDS = 0.01


class InProcessWorker:
    """Offers tools to a server while its block is open: ``with`` on a thread of its own, ``async with`` in the loop.

    Coroutine functions run in that thread's loop, or in yours; plain functions run on threads either way. Any process
    that offers a tool of the same name may be given its calls: give tools that hold something of this process's own
    a name of their own.

    Args:
        tools: What it offers, as for `agenttx.worker.Worker`.
        graphs: Graphs whose functions it hosts.
        address: As for `Worker`; give the client's.
        concurrency: How many calls it runs at once for each server.
        token: Bearer token, as for `Worker`.
        tls: As for `Worker`.
        connect_seconds: How long entering the block may take.
        drain_seconds: How long calls under way may go on when the block is left.
    """

    def __init__(
        self,
        tools: Iterable[AnyTool] = (),
        address: str | Sequence[str] | None = None,
        *,
        graphs: Iterable[GraphBuilder] = (),
        concurrency: int = 16,
        token: str | None = None,
        tls: Tls | bool | None = None,
        connect_seconds: float = 10.0,
        drain_seconds: float = 30.0,
    ) -> None:
        self._worker = Worker(
            address,
            tools=tools,
            graphs=graphs,
            concurrency=concurrency,
            token=token,
            tls=tls,
            drain_seconds=drain_seconds,
        )
        self._connect_seconds = connect_seconds
        self._serving: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._run_thread, name="agenttx-in-process-worker", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            RpcError: the server refused the tools for good; a ConnectionFailed where nobody took them in time.
        """
        self._serving = asyncio.create_task(self._worker.serve(), name="agenttx-in-process-worker")
        connected = asyncio.create_task(self._connected())
        try:
            async with asyncio.timeout(self._connect_seconds):
                await asyncio.wait((self._serving, connected), return_when=asyncio.FIRST_COMPLETED)
            if self._serving.done():
                self._serving.result()
        except TimeoutError:
            await self._stop()
            raise ConnectionFailed(
                f"no server took the tools within {self._connect_seconds:g} s; the log of agenttx.worker says why",
                code=grpc.StatusCode.UNAVAILABLE,
            ) from None
        except BaseException:
            await self._stop()
            raise
        finally:
            connected.cancel()
        return self

    async def __aexit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self._worker.stop()
        if self._serving is not None:
            await asyncio.wait((self._serving,))

    async def _connected(self) -> None:
        while not self._worker.server_ids:  # noqa: ASYNC110 — a worker tells of it, and nobody else waits for it
            await asyncio.sleep(_LOOK_SECONDS)

    def _run_thread(self) -> None:
        asyncio.run(self._serve_on_thread())

    async def _serve_on_thread(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self.__aenter__()
        except BaseException as failure:
            self._failure = failure
            return
        finally:
            self._started.set()
        assert self._serving is not None
        await asyncio.wait((self._serving,))
