"""Carries runs of this server on until each invocation has ended with a durable status.

However an invocation ends, its run is left with a status that can be read and gone on from. What passes (the store
doesn't answer, another writer was first) is waited for, ever longer, and the run taken up again from what is durable.
Anything else is written down as the run's failure. Only a server that stops, or has lost the run to another one,
lets go of a live run: that other one goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field

from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.graphs.runs.invocation import Invocation, RunParts
from agenttx_server.graphs.runs.journal import Draft, failed
from agenttx_server.graphs.runs.ports import GraphCatalog, RunChange
from agenttx_server.graphs.runs.position import Position, load_position
from agenttx_server.graphs.runs.records import LIVE, CommitPolicy, RunError, RunRecord
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.run_errors import error_of, is_draining, is_fault, passes
from agenttx_server.graphs.runs.step_port import Turn
from agenttx_server.graphs.runs.superstep_run import StopSignal
from agenttx_server.graphs.runs.visits import visited_nodes
from agenttx_server.graphs.runs.waiting_commit import begin_to_wait

__all__ = ["Carried", "RunCarrier"]

_LOGGER = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 15.0


@dataclass(slots=True)
class Carried:
    """A run that this server works on. ``invocation`` is None until it is taken up."""

    run_id: str
    stop: StopSignal = field(default_factory=StopSignal)
    invocation: Invocation | None = None
    visited: list[str] = field(default_factory=list)
    task: asyncio.Task[Invocation | None] | None = None


class RunCarrier:
    """The runs that this server works on, each once."""

    def __init__(self, parts: RunParts, catalog: GraphCatalog, server_id: Callable[[], str]) -> None:
        self._parts = parts
        self._catalog = catalog
        self._server_id = server_id
        self.tasks = OwnedTasks()
        self._carried: dict[str, Carried] = {}
        self._hands_over = False

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._carried

    def get(self, run_id: str) -> Carried | None:
        """What this server does with a run."""
        return self._carried.get(run_id)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that are under way here."""
        return tuple(self._carried)

    def begin_drain(self) -> None:
        """Let go of runs at their next boundary: another server, or the next start, goes on with them."""
        self._hands_over = True
        for carried in self._carried.values():
            carried.stop.hands_over = True

    @contextmanager
    def beginning(self, run_id: str) -> Iterator[Carried]:
        """Have a run taken for this server's while a request makes it live; it is carried on once that is over.

        Also where the request fails: whether it made the run live is not known then.
        """
        before = self._carried.get(run_id)
        carried = self._carried[run_id] = Carried(run_id)
        try:
            yield carried
        except RunRefused:
            self._let_go(carried)
            if before is not None and before.task is not None and not before.task.done():
                self._carried[run_id] = before
            raise
        except BaseException:
            self._start(carried)
            raise
        self._start(carried)

    def carry(self, run_id: str) -> None:
        """Go on with a live run of this server, unless it is under way."""
        if run_id not in self._carried:
            self._carried[run_id] = Carried(run_id)
            self._start(self._carried[run_id])

    def _start(self, carried: Carried) -> None:
        carried.stop.hands_over = self._hands_over
        if carried.task is None:
            carried.task = self.tasks.spawn(self._carry(carried))

    async def _carry(self, carried: Carried) -> Invocation | None:
        """Go on until the invocation has ended; return it, None if it isn't known here how it ended."""
        pause = _FIRST_PAUSE_SECONDS
        offset = -1
        try:
            while True:
                try:
                    return await self._go(carried)
                except Exception as error:
                    if is_draining(error):
                        return None
                    why = str(error) or type(error).__name__
                    _LOGGER.warning("run=%s stopped, and is taken up again: %s", carried.run_id, why)
                    known = carried.invocation
                    if known is not None and known.run.next_offset > offset:
                        offset, pause = known.run.next_offset, _FIRST_PAUSE_SECONDS
                await self._parts.clock.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            self._let_go(carried)

    def _let_go(self, carried: Carried) -> None:
        if self._carried.get(carried.run_id) is carried:
            del self._carried[carried.run_id]

    async def _go(self, carried: Carried) -> Invocation | None:
        """Go on from what is durable. Raises what passes."""
        begun = carried.invocation
        run: RunRecord | None
        if begun is not None and not begun.has_begun:
            run = begun.run
        else:
            run = await self._parts.store.load_run(carried.run_id)
            if run is None or not self._is_ours(run):
                return None
        if run.thread_id and not run.transaction_id and run.options.commit is CommitPolicy.INTERRUPT:
            await self._begin_to_wait(run)
            return None
        try:
            async with self._parts.transactions.turn(run.transaction_id, run.run_id, run.server_id) as turn:
                return await self._go_in_turn(carried, turn)
        except Exception as error:
            if passes(error):
                raise
            if is_fault(error):
                _LOGGER.exception("run=%s failed", carried.run_id)
            else:
                _LOGGER.warning("run=%s is not gone on with: %s", carried.run_id, error)
            await self._fail(carried, error)
            return None

    async def _begin_to_wait(self, run: RunRecord) -> None:
        """Have a run wait that was cut off behind its commit."""
        thread = await self._parts.store.load_thread(run.thread_id)
        if thread is not None:
            parts = self._parts
            await begin_to_wait(parts.store, parts.transactions, run, thread, parts.clock.now())

    async def _go_in_turn(self, carried: Carried, turn: Turn) -> Invocation | None:
        before = carried.invocation
        if before is not None and not before.has_begun:
            await before.go(turn)
            return before
        # Read inside the turn: nobody moves the run on meanwhile.
        run = await self._parts.store.load_run(carried.run_id)
        if run is None or not self._is_ours(run):
            return None
        if not run.thread_id and before is None:
            # No checkpoint leads on: a run without a thread that does not complete is rolled back.
            if turn.obstacle is None:
                await turn.roll_back("the server of a run without a thread was lost")
            return None
        if before is not None and before.sent_from is None:
            carried.visited += before.visited
        else:
            # Another process carried it before, or it isn't known what was written: the journal alone tells.
            carried.visited = list(await visited_nodes(self._parts.store, run))
        carried.invocation = await self._taken_up(carried, run, before, turn)
        await carried.invocation.go(turn)
        return carried.invocation

    async def _taken_up(
        self, carried: Carried, run: RunRecord, before: Invocation | None, turn: Turn
    ) -> Invocation:
        store = self._parts.store
        graph = await self._catalog.load(run.principal, run.graph, run.graph_version)
        if graph is None:
            raise RunRefused("GRAPH_NOT_FOUND", f"there is no graph '{run.graph}'", {"graph": run.graph})
        thread = await store.load_thread(run.thread_id) if run.thread_id else None
        known = None if before is None else _known_position(before, run, turn)
        position = known
        if thread is not None:
            position = await load_position(store, graph, thread)
            if known is not None and known.number == position.number:
                position = known  # with what checkpoints don't keep
        assert position is not None, "a run without a thread is gone on with where it was begun"
        return Invocation(self._parts, graph, run, thread, position, carried.stop)

    def _is_ours(self, run: RunRecord) -> bool:
        """Whether a run is this server's to go on with; without a thread also to take back."""
        if run.server_id != self._server_id():
            return False
        return run.status in LIVE or (not run.thread_id and bool(run.transaction_id))

    async def _fail(self, carried: Carried, error: Exception) -> None:
        """Write down that a run has failed. Raises what passes."""
        store = self._parts.store
        run = await store.load_run(carried.run_id)
        if run is None or not self._is_ours(run):
            return
        try:
            async with self._parts.transactions.turn(run.transaction_id, run.run_id) as turn:
                await self._fail_in_turn(carried, error, turn)
        except EngineError as refused:
            if passes(refused):
                raise
            # There is no transaction to have a turn at: the offsets of its events guard the run.
            await store.write(self._failure(run, error_of(error, run)))

    async def _fail_in_turn(self, carried: Carried, error: Exception, turn: Turn) -> None:
        store = self._parts.store
        run = await store.load_run(carried.run_id)
        if run is None or not self._is_ours(run):
            return
        if run.status in LIVE:
            await turn.write(store.rows(self._failure(run, error_of(error, run))))
        if not run.thread_id and turn.obstacle is None:
            await turn.roll_back("a run without a thread did not complete")

    def _failure(self, run: RunRecord, error: RunError) -> RunChange:
        draft = Draft(run, self._parts.clock.now())
        ended = failed(draft, run, error)
        return RunChange(runs=(draft.counted(ended),), events=draft.events, standing_runs=(run.run_id,))


def _known_position(before: Invocation, run: RunRecord, turn: Turn) -> Position:
    """Where an invocation that was cut off here stands: before its superstep, or behind it."""
    if before.sent_from is not None and run.superstep < before.run.superstep:
        return before.sent_from  # the boundary was on its way, and was not written
    began_next = run.superstep > before.run.superstep
    wrote_boundary = began_next or (not turn.is_open and run.superstep == before.run.superstep)
    return before.reached if before.reached is not None and wrote_boundary else before.position
