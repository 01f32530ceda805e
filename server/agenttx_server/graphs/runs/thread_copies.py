"""New threads out of old ones: a checkpoint as the root of one (ForkThread), or the whole history (CopyThread).

The old thread stays as it is. Where work is left at the new head, the new thread has a run with a transaction of its
own, which RetryRun goes on in; where the old one's is not committed, that begins with a copy of its store writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import JsonValue
from agenttx_server.engine.ports import ExtraRows, ExtraRowsRefused, IdSource
from agenttx_server.engine.visibility import thread_prefix
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.fold import TaskWrites
from agenttx_server.graphs.node_results import OVERWRITE
from agenttx_server.graphs.runs.branching import branch_of, find_checkpoint
from agenttx_server.graphs.runs.embedded_copies import copied_inside
from agenttx_server.graphs.runs.folding import folded_aside
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.journal import Draft, report_checkpoints
from agenttx_server.graphs.runs.keyed_locks import KeyedLocks
from agenttx_server.graphs.runs.ports import GraphCatalog, RunChange
from agenttx_server.graphs.runs.position import Position, next_checkpoint
from agenttx_server.graphs.runs.records import (
    CheckpointRecord,
    CheckpointSource,
    RequestRecord,
    RunRecord,
    RunStatus,
    ThreadRecord,
)
from agenttx_server.graphs.runs.requests import (
    CopyRequest,
    ForkRequest,
    RunRefused,
    Trigger,
    busy,
    request_key,
)
from agenttx_server.graphs.runs.run_errors import busy_where_moved
from agenttx_server.graphs.runs.thread_removal import is_whole
from agenttx_server.graphs.runs.work_json import work_text

__all__ = ["CopiedThread", "ThreadCopies"]

_PAGE = 200
_MOST_LOOKS = 20


@dataclass(frozen=True, slots=True)
class CopiedThread:
    """A new thread at its head; ``checkpoints`` is how many it has."""

    thread: ThreadRecord
    run: RunRecord
    checkpoint: CheckpointRecord
    position: Position
    checkpoints: int


class ThreadCopies:
    """Forks and copies threads. Raises RunRefused; nothing was changed then."""

    def __init__(
        self,
        parts: RunParts,
        catalog: GraphCatalog,
        ids: IdSource,
        requests: KeyedLocks,
        shelves: KeyedLocks,
    ) -> None:
        self._requests = requests
        self._shelves = shelves
        self._parts = parts
        self._catalog = catalog
        self._ids = ids

    async def fork(self, request: ForkRequest) -> CopiedThread:
        """Make a checkpoint the root of a new thread.

        Raises RunRefused: THREAD_NOT_FOUND, CHECKPOINT_NOT_FOUND, THREAD_EXISTS, GRAPH_NOT_FOUND, REQUEST_ID_REUSED.
        """
        return await self._once("ForkThread", request, partial(self._fork, request))

    async def _fork(self, request: ForkRequest) -> CopiedThread:
        old, graph, new = await self._threads(request)
        branch = await branch_of(self._parts, old, request.checkpoint_id)
        position = replace(branch.position, places={}, number=None)
        whole: dict[str, JsonValue] = {name: {OVERWRITE: value} for name, value in position.state.items()}
        folded = await folded_aside(graph, {}, [TaskWrites("", (whole,))])
        run = replace(self._run(graph, new, request.principal), superstep=branch.checkpoint.superstep)
        saved = next_checkpoint(
            graph, new, run, position, folded, position.work, CheckpointSource.FORK, new.created_at
        )
        assert saved.thread is not None
        root = replace(
            saved.checkpoints[0],
            forked_thread=old.thread_id,
            forked_number=branch.checkpoint.number,
        )
        inside = await copied_inside(self._parts.store, old.thread_id, root.kept, new.thread_id)
        change = RunChange(threads=(saved.thread,), checkpoints=(root,), values=saved.values, embedded=inside)
        return await self._written(request, "ForkThread", run, saved.position, change, branch.copies)

    async def copy(self, request: CopyRequest) -> CopiedThread:
        """Copy a thread with its whole history. Raises RunRefused as :meth:`fork`."""
        return await self._once("CopyThread", request, partial(self._copy, request))

    async def _copy(self, request: CopyRequest) -> CopiedThread:
        for _ in range(_MOST_LOOKS):
            old, graph, new = await self._threads(request)
            branch = await branch_of(self._parts, old, "")
            kept = [
                item for item in await self._all_checkpoints(old.thread_id) if item.number < old.next_number
            ]
            written = await self._parts.store.all_values(old.thread_id)
            # Another server may have pruned it between these.
            if is_whole(kept, written) and any(item.number == old.head for item in kept):
                break
        else:
            raise busy(request.thread_id, "")
        run = replace(self._run(graph, new, request.principal), superstep=old.superstep)
        numbers = {item.number for item in kept}
        checkpoints = [
            replace(
                item,
                thread_id=new.thread_id,
                transaction_id="",
                parent=item.parent if item.parent in numbers else None,
            )
            for item in kept
        ]
        head = next((item for item in checkpoints if item.number == old.head), None)
        assert head is not None
        checkpoints.remove(head)
        head = replace(
            head,
            run_id=run.run_id,
            work=work_text(branch.position.work),
            forked_thread=old.thread_id,
            forked_number=old.head,
        )
        values = [replace(item, thread_id=new.thread_id) for item in written if item.number < old.next_number]
        thread = replace(
            new,
            head=old.head,
            next_number=old.next_number,
            superstep=old.superstep,
            branch=old.branch,
            committed_head=None if branch.copies else old.committed_head,
        )
        every = [run for item in (*checkpoints, head) for run in (*item.kept, *item.children)]
        inside = await copied_inside(self._parts.store, old.thread_id, every, new.thread_id)
        change = RunChange(
            threads=(thread,), checkpoints=(*checkpoints, head), values=values, embedded=inside
        )
        return await self._written(request, "CopyThread", run, branch.position, change, branch.copies)

    # --- parts ------------------------------------------------------------------------------------

    async def _once(
        self, method: str, request: ForkRequest | CopyRequest, make: Callable[[], Awaitable[CopiedThread]]
    ) -> CopiedThread:
        """Do what a request asks unless it was done, while nothing is removed of the thread here."""
        async with self._requests.hold(request_key(request)), self._shelves.hold(request.thread_id):
            if (known := await self._known(request, method)) is not None:
                return known
            self._parts.transactions.check_stored(request.principal)
            try:
                with busy_where_moved(request.thread_id):
                    return await make()
            except RunRefused:
                # Perhaps as another server was sent the same.
                if (known := await self._known(request, method)) is None:
                    raise
                return known

    async def _known(self, request: ForkRequest | CopyRequest, method: str) -> CopiedThread | None:
        store = self._parts.store
        if not request.request_id:
            return None
        known = await store.find_request(request.principal, request.request_id)
        if known is None:
            return None
        if (known.method, known.fingerprint) != (method, request.fingerprint):
            raise RunRefused("REQUEST_ID_REUSED", "the request_id was used for another request")
        run = await store.load_run(known.run_id)
        thread = None if run is None else await store.load_thread(run.thread_id)
        if run is None or thread is None:
            raise _no_thread(request.new_thread_id)
        branch = await branch_of(self._parts, thread, "")
        count = await store.count_checkpoints(thread.thread_id)
        return CopiedThread(thread, run, branch.checkpoint, branch.position, count)

    async def _threads(
        self, request: ForkRequest | CopyRequest
    ) -> tuple[ThreadRecord, CompiledGraph, ThreadRecord]:
        store, now = self._parts.store, self._parts.clock.now()
        old = await store.load_thread(request.thread_id)
        if old is None:
            raise _no_thread(request.thread_id)
        await find_checkpoint(self._parts, old, "")
        graph = await self._catalog.load(old.principal, old.graph, old.graph_version)
        if graph is None:
            raise RunRefused("GRAPH_NOT_FOUND", f"there is no graph '{old.graph}'", {"graph": old.graph})
        name = request.new_thread_id or thread_prefix(request.principal) + self._ids.new_id()
        if await store.load_thread(name) is not None:
            raise _exists(name)
        new = ThreadRecord(
            name, graph.name, graph.version, "", now, now, superstep=0, principal=request.principal
        )
        return old, graph, new

    def _run(self, graph: CompiledGraph, new: ThreadRecord, principal: str) -> RunRecord:
        run_id = self._ids.new_id()
        return RunRecord(
            run_id,
            new.thread_id,
            graph.name,
            graph.version,
            RunStatus.DRAINED,
            new.created_at,
            new.created_at,
            root_run_id=run_id,
            is_branch=True,
            invocation=1,
            invoked_at=new.created_at,
            principal=principal,
        )

    async def _all_checkpoints(self, thread_id: str) -> list[CheckpointRecord]:
        found: list[CheckpointRecord] = []
        cursor = ""
        while True:
            page = await self._parts.store.list_checkpoints(thread_id, frozenset(), cursor, _PAGE)
            found += page.checkpoints
            cursor = page.next_cursor
            if not cursor:
                return found[::-1]

    async def _written(
        self,
        request: ForkRequest | CopyRequest,
        method: str,
        run: RunRecord,
        position: Position,
        change: RunChange,
        copies: tuple[str, int] | None,
    ) -> CopiedThread:
        thread, head = change.threads[0], change.checkpoints[-1]
        is_over = position.work.is_done and copies is None
        requests = (
            RequestRecord(request.principal, request.request_id, method, request.fingerprint, run.run_id),
        )
        made: list[RunChange] = []

        def rows(transaction_id: str) -> Sequence[ExtraRows]:
            owned = replace(run, transaction_id=transaction_id, copies=copies)
            draft = Draft(owned, thread.created_at)
            draft.add("run.started", trigger=Trigger.FORK.value, graph=run.graph, version=run.graph_version)
            report_checkpoints(draft, (head,))
            if is_over:
                draft.add("run.completed", supersteps=0, state=dict(position.state))
                owned = replace(owned, status=RunStatus.COMPLETED, ended_at=thread.created_at)
            else:
                draft.add("run.drained")
            kept = replace(
                thread,
                run_id=run.run_id,
                transaction_id=transaction_id,
                transaction_first=0 if is_over else head.number,
                committed_head=head.number if is_over else thread.committed_head,
            )
            whole = replace(
                change,
                threads=(kept,),
                runs=(draft.counted(owned),),
                checkpoints=(*change.checkpoints[:-1], replace(head, transaction_id=transaction_id)),
                events=draft.events,
                requests=requests if request.request_id else (),
            )
            made[:] = [whole]
            return self._parts.store.rows(whole)

        try:
            if is_over:
                rows("")
                await self._parts.store.write(made[0])
            else:
                await self._parts.transactions.begin(run.run_id, request.principal, rows)
        except ExtraRowsRefused as refused:
            raise _exists(thread.thread_id) from refused
        whole = made[0]
        last = whole.checkpoints[-1]
        return CopiedThread(whole.threads[0], whole.runs[0], last, position, len(whole.checkpoints))


def _exists(thread_id: str) -> RunRefused:
    return RunRefused("THREAD_EXISTS", f"there is a thread '{thread_id}'", {"thread_id": thread_id})


def _no_thread(thread_id: str) -> RunRefused:
    return RunRefused("THREAD_NOT_FOUND", f"there is no thread '{thread_id}'", {"thread_id": thread_id})
