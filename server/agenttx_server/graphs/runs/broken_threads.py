"""Which threads could not go on under another version of their graph: what GRAPH_CHANGED would refuse."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.frozen import dataclass
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.diff import broken_by
from agenttx_server.graphs.runs.ports import GraphCatalog, RunStore
from agenttx_server.graphs.runs.position import load_position, unfolded_tasks
from agenttx_server.graphs.runs.records import RunRecord, RunStatus, ThreadRecord
from agenttx_server.graphs.runs.version_change import MOST_REASONS, pending_work

__all__ = ["BrokenThread", "BrokenThreadPage", "BrokenThreads"]

_LOOKED_AT_ONCE = 100
_OPEN = frozenset(RunStatus) - {RunStatus.COMPLETED}


@dataclass(frozen=True, slots=True)
class BrokenThread:
    """A thread that could not go on. ``pending_nodes`` are those that are gone."""

    thread_id: str
    pending_nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class BrokenThreadPage:
    """What was found among the threads that were looked at; ``next_cursor`` is "" where there are no others."""

    threads: Sequence[BrokenThread]
    next_cursor: str


class BrokenThreads:
    """Looks at threads as they stand."""

    def __init__(self, store: RunStore, catalog: GraphCatalog) -> None:
        self._store = store
        self._catalog = catalog

    async def find(self, principal: str, new: CompiledGraph, cursor: str) -> BrokenThreadPage:
        """Look at a page of a principal's threads of a graph with an open transaction, those last used first.

        Each under the version that it is of. Raises InvalidRequest for an unknown cursor.
        """
        try:
            page = await self._store.list_threads(principal, new.name, _OPEN, cursor, _LOOKED_AT_ONCE)
        except ValueError:
            wrong = FieldViolation("threads_page_token", "is none that an answer gave")
            raise InvalidRequest((wrong,)) from None
        found = [await self._look_at(thread, run, new) for thread, run in page.threads]
        return BrokenThreadPage([item for item in found if item is not None], page.next_cursor)

    async def _look_at(self, thread: ThreadRecord, run: RunRecord, new: CompiledGraph) -> BrokenThread | None:
        if not thread.transaction_id or run.graph_version == new.version:
            return None
        old = await self._catalog.load(run.principal, run.graph, run.graph_version)
        if old is None:
            return None
        position = await load_position(self._store, old, thread)
        pending = pending_work(old, position, await unfolded_tasks(self._store, run))
        reasons = broken_by(old, new, pending)
        if not reasons:
            return None
        gone = tuple(name for name in dict.fromkeys(pending.nodes) if name not in new.nodes)
        return BrokenThread(thread.thread_id, gone, "; ".join(reasons[:MOST_REASONS]))
