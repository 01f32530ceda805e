"""Hosts the functions of registered graphs in the client's own process, until the client closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agenttx.endpoint import Tls
from agenttx.errors import ConfigurationError
from agenttx.graph import GraphBuilder

if TYPE_CHECKING:
    from agenttx.integrations.in_process_worker import InProcessWorker

__all__ = ["AsyncGraphHosting", "GraphHosting"]


class _Hosting:
    """``address``, ``token`` and ``tls`` are the client's."""

    def __init__(self, address: str, token: str | None, tls: Tls | bool | None) -> None:
        self._address = address
        self._token = token
        self._tls = tls
        self._workers: dict[str, InProcessWorker] = {}

    def _worker(self, graph: GraphBuilder) -> InProcessWorker:
        try:
            # Only now: clients that host nothing do without pydantic.
            from agenttx.integrations.in_process_worker import InProcessWorker
        except ImportError as error:
            raise ConfigurationError(
                f"hosting a graph's functions needs the extra worker: pip install 'agenttx[worker]' ({error})"
            ) from error
        return InProcessWorker(graphs=[graph], address=self._address, token=self._token, tls=self._tls)


class GraphHosting(_Hosting):
    """For the synchronous client: each graph's functions on a thread with an event loop of its own."""

    def host(self, graph: GraphBuilder) -> None:
        """Host a graph's functions, in place of those of an earlier builder of its name."""
        if not any(graph.functions.values()):
            return
        worker = self._worker(graph)
        worker.__enter__()
        before, self._workers[graph.name] = self._workers.get(graph.name), worker
        if before is not None:
            before.__exit__(None, None, None)

    def close(self) -> None:
        """Stop hosting, once what runs has ended."""
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.__exit__(None, None, None)


class AsyncGraphHosting(_Hosting):
    """For the asynchronous client: in its event loop."""

    async def host(self, graph: GraphBuilder) -> None:
        """Host a graph's functions, in place of those of an earlier builder of its name."""
        if not any(graph.functions.values()):
            return
        worker = self._worker(graph)
        await worker.__aenter__()
        before, self._workers[graph.name] = self._workers.get(graph.name), worker
        if before is not None:
            await before.__aexit__(None, None, None)

    async def close(self) -> None:
        """Stop hosting, once what runs has ended."""
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            await worker.__aexit__(None, None, None)
