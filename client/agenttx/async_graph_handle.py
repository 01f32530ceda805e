"""A registered graph that is run, on the asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from agenttx import run_operations
from agenttx.async_connection import AsyncConnection
from agenttx.async_run_stream import AsyncRunStream, follow
from agenttx.graph_records import GraphFinding, GraphVersion, RegisteredGraph
from agenttx.methods import SUBSCRIBE_EVENTS
from agenttx.run_event_cursors import RunStreamCursor, SubscriptionCursor
from agenttx.run_events import EventMode, GraphEvent, GraphEventKind
from agenttx.run_operations import NO_VALUE, RunLimits, Targets
from agenttx.run_records import Checkpoint, RewoundThread, RunOutcome

__all__ = ["AsyncGraph"]

_LIMITS = RunLimits()
_WAIT_SECONDS = 600.0


class AsyncGraph:
    """A registered version of a graph, and its runs: what `client.graphs.register` and `client.graphs.get` return.

    A run belongs to the server: it goes on if this process ends, and after the server's own end on the next start or on
    another server. A run on a thread keeps its state at every boundary, and can be resumed, retried, edited and
    taken back; one without a thread is done or undone whole.
    """

    def __init__(self, connection: AsyncConnection, registered: RegisteredGraph) -> None:
        self._connection = connection
        self._registered = registered

    def __repr__(self) -> str:
        return f"AsyncGraph({self.name!r}, {self.version[:9]!r})"

    @property
    def name(self) -> str:
        """The graph's name."""
        return self._registered.graph.name

    @property
    def version(self) -> str:
        """The version: `v` and 64 hexadecimal digits. A run keeps to the one that it was started with."""
        return self._registered.graph.version

    @property
    def registered(self) -> RegisteredGraph:
        """The version with the compiler's findings, as a record."""
        return self._registered

    @property
    def graph(self) -> GraphVersion:
        """The version with what is known of it."""
        return self._registered.graph

    @property
    def findings(self) -> tuple[GraphFinding, ...]:
        """What the compiler warned of."""
        return self._registered.findings

    @property
    def existed(self) -> bool:
        """Whether it was registered before."""
        return self._registered.existed

    # --- runs ---------------------------------------------------------------------------------

    async def run(
        self,
        given: Mapping[str, Any] | None = None,
        *,
        thread: str = "",
        checkpoint: str = "",
        goto: Targets = (),
        reset: bool = False,
        discard_interrupts: bool = False,
        queue: bool = False,
        metadata: Mapping[str, str] | None = None,
        limits: RunLimits = _LIMITS,
        allow_graph_change: bool = False,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> RunOutcome:
        """Start a run and wait until it has completed, failed, or waits for somebody.

        A run that ends in an error is returned as any other: `status` and `error` tell.

        Args:
            given: The input, an update of channels; None for none.
            thread: The thread, which is made if it isn't there; empty for a run that keeps no state.
            checkpoint: Start at this checkpoint of the thread, on a branch of its own.
            goto: Start there instead of at START's edges.
            reset: Roll back what is open on the thread and begin with the graph's defaults.
            discard_interrupts: Withdraw what the thread waits for; else it refuses new input.
            queue: Wait while another run is under way on the thread; else it is refused.
            metadata: Labels of the run.
            limits: Limits in place of the graph's.
            allow_graph_change: The thread may go on under this version though it was begun with another.
            wait_seconds: How long to wait. The run goes on after that.

        Raises:
            NotFound: there is no such graph, thread or checkpoint.
            PreconditionFailed: the thread doesn't take it as it stands; `reason` says why.
            Aborted: another run is under way on the thread.
            DeadlineExceeded: it is still running.
        """
        return await self._connection.perform(
            run_operations.start_run(
                self.name,
                self.version,
                given,
                thread=thread,
                checkpoint=checkpoint,
                goto=goto,
                reset=reset,
                discard_interrupts=discard_interrupts,
                queue=queue,
                metadata=metadata or {},
                limits=limits,
                allow_graph_change=allow_graph_change,
                wait_seconds=wait_seconds,
            )
        )

    async def start(
        self,
        given: Mapping[str, Any] | None = None,
        *,
        thread: str = "",
        checkpoint: str = "",
        goto: Targets = (),
        reset: bool = False,
        discard_interrupts: bool = False,
        queue: bool = False,
        metadata: Mapping[str, str] | None = None,
        limits: RunLimits = _LIMITS,
        allow_graph_change: bool = False,
    ) -> RunOutcome:
        """Start a run and return at once, with its `run_id`: `client.graphs.run` tells how far it is.

        Args and errors are those of `run`.
        """
        return await self.run(
            given,
            thread=thread,
            checkpoint=checkpoint,
            goto=goto,
            reset=reset,
            discard_interrupts=discard_interrupts,
            queue=queue,
            metadata=metadata,
            limits=limits,
            allow_graph_change=allow_graph_change,
            wait_seconds=0.0,
        )

    def stream(
        self,
        given: Mapping[str, Any] | None = None,
        *,
        thread: str = "",
        checkpoint: str = "",
        goto: Targets = (),
        reset: bool = False,
        discard_interrupts: bool = False,
        queue: bool = False,
        metadata: Mapping[str, str] | None = None,
        limits: RunLimits = _LIMITS,
        allow_graph_change: bool = False,
        modes: Iterable[EventMode | str] = (),
        live: bool = False,
        cancel_on_disconnect: bool = False,
    ) -> AsyncRunStream:
        """Start a run and iterate over its events until it has completed, failed, or waits for somebody.

        `outcome` of the stream then tells how it ended. Nothing is lost or told twice, also where the connection
        was lost in between; a reader that is slow holds up no run.

        Args:
            given: The input, an update of channels; None for none.
            thread: The thread, which is made if it isn't there; empty for a run that keeps no state.
            checkpoint: Start at this checkpoint of the thread, on a branch of its own.
            goto: Start there instead of at START's edges.
            reset: Roll back what is open on the thread and begin with the graph's defaults.
            discard_interrupts: Withdraw what the thread waits for; else it refuses new input.
            queue: Wait while another run is under way on the thread; else it is refused.
            metadata: Labels of the run.
            limits: Limits in place of the graph's.
            allow_graph_change: The thread may go on under this version though it was begun with another.
            modes: What to see; none: UPDATES.
            live: Also notices of what a superstep under way does, without an offset: it comes again when that ends.
            cancel_on_disconnect: Cancel the run if the stream is left, or its connection lost.

        Raises:
            NotFound: there is no such graph, thread or checkpoint.
            PreconditionFailed: the thread doesn't take it as it stands; `reason` says why.
            Aborted: another run is under way on the thread.
        """
        start = run_operations.start_request(
            self.name,
            self.version,
            given,
            thread=thread,
            checkpoint=checkpoint,
            goto=goto,
            reset=reset,
            discard_interrupts=discard_interrupts,
            queue=queue,
            metadata=metadata or {},
            limits=limits,
            allow_graph_change=allow_graph_change,
            cancel_on_disconnect=cancel_on_disconnect,
        )
        return AsyncRunStream(
            self._connection, RunStreamCursor(start, modes, self._connection.retry, live=live)
        )

    def events(
        self,
        *,
        run: str = "",
        thread: str = "",
        node: str = "",
        namespace: str = "",
        kinds: Iterable[GraphEventKind | str] = (),
        modes: Iterable[EventMode | str] = (),
        from_offset: int | None = None,
        from_sequence: int | None = None,
        live: bool = False,
    ) -> AsyncIterator[GraphEvent]:
        """Iterate over events of this graph's runs: those kept, from a position on, then new ones as they happen.

        Of one run it ends once that has completed; else it is ended by leaving the loop.

        Args:
            run: Of this run; empty for all.
            thread: On this thread; empty for all.
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
            root_run="",
            thread=thread,
            graph=self.name,
            node=node,
            namespace=namespace,
            kinds=kinds,
            modes=modes,
            from_offset=from_offset,
            from_sequence=from_sequence,
            live=live,
        )
        return follow(self._connection, SUBSCRIBE_EVENTS, cursor)

    async def resume(
        self,
        thread: str,
        value: Any = NO_VALUE,
        *,
        values: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        goto: Targets = (),
        limits: RunLimits = _LIMITS,
        version: str = "",
        allow_graph_change: bool = False,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> RunOutcome:
        """Answer what a thread waits for, and wait as `run` does.

        Args:
            thread: The thread.
            value: The answer, where exactly one question is pending; any JSON value, None too.
            values: Answers by interrupt id; some may be left for later.
            update: An update to make first.
            goto: What to run beside the nodes that go on.
            limits: New limits.
            version: Go on under this version.
            allow_graph_change: Allow that.
            wait_seconds: How long to wait; 0 returns at once.

        Raises:
            NotFound: there is no such thread or question.
            PreconditionFailed: NOTHING_TO_RESUME, AMBIGUOUS_RESUME, INTERRUPT_ALREADY_RESOLVED; nothing was consumed.
            Aborted: a run is under way on the thread.
        """
        return await self._connection.perform(
            run_operations.resume_run(
                thread,
                value,
                values or {},
                update=update,
                goto=goto,
                limits=limits,
                version=version,
                allow_graph_change=allow_graph_change,
                wait_seconds=wait_seconds,
            )
        )

    async def retry(
        self,
        thread: str,
        *,
        update: Mapping[str, Any] | None = None,
        goto: Targets = (),
        discard: Sequence[str] = (),
        limits: RunLimits = _LIMITS,
        version: str = "",
        allow_graph_change: bool = False,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> RunOutcome:
        """Go on with a run that failed, was cancelled or drained, or stopped before or after a node; wait as `run` does.

        Finished nodes are not run again.

        Args:
            thread: The thread.
            update: An update to make first.
            goto: What to run beside what is pending.
            discard: Ids of finished tasks whose results are given up: they are run again.
            limits: New limits.
            version: Go on under this version.
            allow_graph_change: Allow that.
            wait_seconds: How long to wait; 0 returns at once.

        Raises:
            NotFound: there is no such thread.
            PreconditionFailed: NOTHING_TO_RESUME where answers are awaited or nothing is left.
            Aborted: a run is under way on the thread.
        """
        return await self._connection.perform(
            run_operations.retry_run(
                thread,
                update=update,
                goto=goto,
                discard=discard,
                limits=limits,
                version=version,
                allow_graph_change=allow_graph_change,
                wait_seconds=wait_seconds,
            )
        )

    async def rewind(
        self, thread: str, checkpoint: str, *, dry_run: bool = False, accept_irreversible: bool = False
    ) -> RewoundThread:
        """Undo all that came behind a checkpoint of the open transaction; `retry` goes on from there.

        Args:
            thread: The thread.
            checkpoint: Where to go back to.
            dry_run: Only say what that would undo.
            accept_irreversible: Also past a step that can't be undone.

        Raises:
            PreconditionFailed: IRREVERSIBLE_STEP, STEP_IN_DOUBT, or the checkpoint isn't of the open transaction.
        """
        return await self._connection.perform(
            run_operations.rewind_run(
                thread, checkpoint, dry_run=dry_run, accept_irreversible=accept_irreversible
            )
        )

    # --- states -------------------------------------------------------------------------------

    async def state(
        self, thread: str, checkpoint: str = "", *, include_pending: bool = True, namespace: str = ""
    ) -> Checkpoint:
        """Read the state of a thread.

        Args:
            thread: The thread.
            checkpoint: At this checkpoint; empty for the head.
            include_pending: Of the head: with what finished since.
            namespace: Of the graph that is embedded there, as an interrupt, an error or a checkpoint's `children` name
                it; empty for the thread's own.

        Raises:
            NotFound: there is no such thread or checkpoint.
        """
        return await self._connection.perform(
            run_operations.graph_state(
                thread, checkpoint, include_pending=include_pending, namespace=namespace
            )
        )

    async def history(
        self,
        thread: str,
        *,
        all_branches: bool = False,
        include_state: bool = True,
        page_size: int = 0,
        namespace: str = "",
    ) -> AsyncIterator[Checkpoint]:
        """Iterate over a thread's checkpoints, the newest first.

        Args:
            thread: The thread.
            all_branches: Those of all branches; else along the parents of the head.
            include_state: With their states.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
            namespace: Of the graph that is embedded there; empty for the thread's own.

        Raises:
            NotFound: there is no such thread.
        """
        token = ""
        while True:
            page = await self._connection.perform(
                run_operations.checkpoints(
                    token,
                    thread=thread,
                    all_branches=all_branches,
                    include_state=include_state,
                    page_size=page_size,
                    namespace=namespace,
                )
            )
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return

    async def update_state(
        self,
        thread: str,
        update: Mapping[str, Any],
        *,
        as_node: str = "",
        goto: Targets = (),
        checkpoint: str = "",
    ) -> Checkpoint:
        """Write to a thread's state through its reducers, as if a node had answered so.

        Args:
            thread: The thread, which is made if it isn't there.
            update: The channels.
            as_node: The node, which then counts as having finished; empty for nobody in particular.
            goto: Where it goes; for a node that routes by commands.
            checkpoint: On this checkpoint, which makes a branch; empty for the head.

        Raises:
            NotFound: there is no such checkpoint.
            PreconditionFailed: the update doesn't fit; `reason` says why.
            Aborted: a run is under way on the thread.
        """
        return await self._connection.perform(
            run_operations.update_state(
                self.name, thread, update, as_node=as_node, goto=goto, checkpoint=checkpoint
            )
        )

    async def fork(self, thread: str, checkpoint: str = "", *, new_thread: str = "") -> Checkpoint:
        """Make a checkpoint the root of a new thread; the old one stays as it is.

        Args:
            thread: The thread.
            checkpoint: The checkpoint; empty for the head.
            new_thread: The new thread; empty: the server names it.

        Raises:
            PreconditionFailed: THREAD_EXISTS.
        """
        return await self._connection.perform(run_operations.fork_thread(thread, checkpoint, new_thread))

    async def copy(self, thread: str, *, new_thread: str = "") -> str:
        """Copy a thread with its history; return the new one's id.

        Args:
            thread: The thread.
            new_thread: The new thread; empty: the server names it.

        Raises:
            PreconditionFailed: THREAD_EXISTS.
        """
        return await self._connection.perform(run_operations.copy_thread(thread, new_thread))

    async def prune(self, thread: str, *, keep_last: int) -> int:
        """Delete old checkpoints of a thread; return how many.

        Args:
            thread: The thread.
            keep_last: How many of each branch stay, at least 1. Those of an open transaction stay too.
        """
        return await self._connection.perform(run_operations.prune_thread(thread, keep_last))

    async def delete_thread(self, thread: str) -> bool:
        """Delete a thread, its runs and their journals; what is open is rolled back first.

        Returns False if undo failed: the thread stays until that is settled.

        Args:
            thread: The thread.

        Raises:
            NotFound: there is none.
            Aborted: a run is under way on it.
        """
        return await self._connection.perform(run_operations.delete_thread(thread))
