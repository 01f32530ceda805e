"""Graphs on the asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import timedelta

from agenttx import graph_operations, run_operations
from agenttx.async_connection import AsyncConnection
from agenttx.async_graph_handle import AsyncGraph
from agenttx.async_run_stream import follow
from agenttx.graph import GraphBuilder
from agenttx.graph_hosting import AsyncGraphHosting
from agenttx.graph_records import (
    GraphDifference,
    GraphExportFormat,
    GraphValidation,
    GraphVersion,
)
from agenttx.methods import SUBSCRIBE_EVENTS
from agenttx.run_event_cursors import SubscriptionCursor
from agenttx.run_events import EventMode, GraphEvent, GraphEventKind
from agenttx.run_records import GraphRun, GraphThread, RunStatus, ThreadInfo

__all__ = ["AsyncGraphs"]


class AsyncGraphs:
    """The graphs of a server: `client.graphs`."""

    def __init__(self, connection: AsyncConnection, hosting: AsyncGraphHosting) -> None:
        self._connection = connection
        self._hosting = hosting

    async def validate(self, graph: GraphBuilder | str) -> GraphValidation:
        """Have a graph checked, without keeping it; say everything that is wrong with it.

        Args:
            graph: A builder, or JSON text as `export` gives it.

        Raises:
            InvalidArgument: the text is no graph at all.
        """
        return await self._connection.perform(graph_operations.validate_graph(graph))

    async def register(self, graph: GraphBuilder | str, *, host: bool = True) -> AsyncGraph:
        """Have a graph checked and kept. Content that was registered before is the same version, and nothing happens.

        The functions of a builder are hosted in this process until the client closes: nodes and routers are called
        here, beside any other worker that hosts them (`agenttx.worker.Worker(graphs=[...])`). Needs the extra worker.

        Args:
            graph: A builder, or JSON text as `export` gives it.
            host: False leaves the functions to other processes.

        Raises:
            InvalidArgument: it isn't sound; `violations` has every finding, `reason` the first one's code.
            ToolDefinitionError: a function can't be called as a node or a router.
            ConnectionFailed: no server took the functions in time.
        """
        registered = await self._connection.perform(graph_operations.register_graph(graph))
        if host and isinstance(graph, GraphBuilder):
            await self._hosting.host(graph)
        return AsyncGraph(self._connection, registered)

    async def get(self, name: str, version: str = "") -> AsyncGraph:
        """Read a registered version.

        Args:
            name: The graph.
            version: The whole version or its first 8 or more characters; empty for the newest.

        Raises:
            NotFound: there is none.
        """
        registered = await self._connection.perform(graph_operations.get_graph(name, version))
        return AsyncGraph(self._connection, registered)

    async def list(self, name: str = "", *, page_size: int = 0) -> AsyncIterator[GraphVersion]:
        """Iterate over graphs by name, each in its newest version; or over the versions of one, the newest first.

        Args:
            name: The graph; empty for all.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        token = ""
        while True:
            page = await self._connection.perform(
                graph_operations.list_graphs(token, name=name, page_size=page_size)
            )
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return

    async def export(
        self, graph: GraphBuilder | str, form: GraphExportFormat | str = "JSON", *, version: str = ""
    ) -> str:
        """Have a graph written: as JSON, which can be registered again, or drawn as Mermaid or DOT.

        Args:
            graph: A builder, or the name of a registered graph.
            form: JSON, MERMAID or DOT.
            version: Of a registered graph, as for `get`.

        Raises:
            NotFound: there is no such graph.
        """
        return await self._connection.perform(graph_operations.export_graph(graph, form, version))

    async def diff(
        self,
        name: str,
        from_version: str = "",
        to_version: str = "",
        *,
        definition: GraphBuilder | None = None,
        threads_token: str = "",
    ) -> GraphDifference:
        """Say what differs between two versions, and what pending work the second one would break.

        Args:
            name: The graph.
            from_version: Empty for the one before; with a definition for the newest.
            to_version: Empty for the newest.
            definition: Compare with this instead, which need not be registered.
            threads_token: The `next_threads_token` of the answer before, to look at further threads.

        Raises:
            NotFound: there is no such version.
        """
        return await self._connection.perform(
            graph_operations.diff_graphs(name, from_version, to_version, definition, threads_token)
        )

    # --- runs and threads of any graph ------------------------------------------------------------

    async def run(self, run_id: str) -> GraphRun:
        """Read how far a run is.

        Args:
            run_id: The run.

        Raises:
            NotFound: there is none.
        """
        return await self._connection.perform(run_operations.get_run(run_id))

    async def runs(
        self,
        *,
        graph: str = "",
        thread: str = "",
        statuses: Iterable[RunStatus | str] = (),
        metadata: Mapping[str, str] | None = None,
        page_size: int = 0,
    ) -> AsyncIterator[GraphRun]:
        """Iterate over runs, the newest first.

        Args:
            graph: Of this graph; empty for all.
            thread: On this thread; empty for all.
            statuses: With these statuses; empty for all.
            metadata: With these labels.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        wanted = tuple(statuses)
        token = ""
        while True:
            page = await self._connection.perform(
                run_operations.runs(
                    token,
                    graph=graph,
                    thread=thread,
                    statuses=wanted,
                    metadata=metadata or {},
                    page_size=page_size,
                )
            )
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return

    def events(
        self,
        *,
        run: str = "",
        root_run: str = "",
        thread: str = "",
        graph: str = "",
        node: str = "",
        namespace: str = "",
        kinds: Iterable[GraphEventKind | str] = (),
        modes: Iterable[EventMode | str] = (),
        from_offset: int | None = None,
        from_sequence: int | None = None,
        live: bool = False,
    ) -> AsyncIterator[GraphEvent]:
        """Iterate over events of runs: those kept, from a position on, then new ones as they happen; each exactly once.

        A lost connection is mended. Of one run it ends once that has completed; else it is ended by leaving the loop.

        Args:
            run: Of this run; empty for all.
            root_run: Of this run and those embedded in it; empty for all.
            thread: On this thread; empty for all.
            graph: Of this graph's runs; empty for all.
            node: Of this node; empty for all.
            namespace: Embedded there: a namespace, or the names of its nodes ("outer/inner"); empty for all.
            kinds: Kinds wanted; none: those of modes.
            modes: What to see; none: everything.
            from_offset: With a run: the first event wanted; None for its first.
            from_sequence: Without a run: the first event wanted; None for what happens from now on.
            live: Also notices of what a superstep under way does, without an offset: it comes again when that ends.

        Raises:
            NotFound: there is no such run.
            OutOfRange: the events from there on are no longer kept.
        """
        cursor = SubscriptionCursor(
            self._connection.retry,
            run=run,
            root_run=root_run,
            thread=thread,
            graph=graph,
            node=node,
            namespace=namespace,
            kinds=kinds,
            modes=modes,
            from_offset=from_offset,
            from_sequence=from_sequence,
            live=live,
        )
        return follow(self._connection, SUBSCRIBE_EVENTS, cursor)

    async def cancel(self, run_id: str, reason: str = "", *, rollback: bool = False) -> GraphRun:
        """Cancel a run: nodes under way are stopped, finished ones keep their results, and `Graph.retry` goes on.

        Args:
            run_id: The run.
            reason: Why, for the record.
            rollback: Undo all that it did too.

        Raises:
            NotFound: there is none.
            PreconditionFailed: it isn't under way, or has completed.
        """
        return await self._connection.perform(run_operations.cancel_run(run_id, reason, rollback=rollback))

    async def drain(self, run_id: str, grace: float | timedelta | None = None) -> GraphRun:
        """Have a run stop at the end of its superstep; `Graph.retry` goes on.

        Args:
            run_id: The run.
            grace: Cancel it if it hasn't stopped after so long, in seconds; None: wait for it.

        Raises:
            NotFound: there is none.
            PreconditionFailed: it isn't under way.
        """
        return await self._connection.perform(run_operations.drain_run(run_id, grace))

    async def thread(self, thread: str) -> ThreadInfo:
        """Read what is known of a thread: its newest run, how long its nodes take, what comes next.

        Args:
            thread: The thread.

        Raises:
            NotFound: there is none.
        """
        return await self._connection.perform(run_operations.get_thread(thread))

    async def threads(
        self, *, graph: str = "", statuses: Iterable[RunStatus | str] = (), page_size: int = 0
    ) -> AsyncIterator[GraphThread]:
        """Iterate over threads, those last used first.

        Args:
            graph: Of this graph; empty for all.
            statuses: Whose newest run has these statuses; empty for all.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        wanted = tuple(statuses)
        token = ""
        while True:
            page = await self._connection.perform(
                run_operations.threads(token, graph=graph, statuses=wanted, page_size=page_size)
            )
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return
