"""Going on under another version of a graph: only where that is allowed, and nothing pending is broken by it."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.diff import PendingWork, broken_by
from agenttx_server.graphs.runs.amended_superstep import ENDED
from agenttx_server.graphs.runs.position import Position
from agenttx_server.graphs.runs.records import TaskRecord
from agenttx_server.graphs.runs.requests import RunRefused

__all__ = ["MOST_REASONS", "check_version_change", "pending_work"]

MOST_REASONS = 5


def check_version_change(
    old: CompiledGraph,
    new: CompiledGraph,
    position: Position,
    tasks: Sequence[TaskRecord] = (),
    *,
    allowed: bool,
    keeps_work: bool = True,
    run_id: str = "",
) -> None:
    """Refuse to go on with what is pending under another version.

    Args:
        old: the version that it was begun under.
        new: the one asked for; nothing is refused if it is the same.
        position: where it stands.
        tasks: those of the open superstep.
        allowed: whether the request allows another version.
        keeps_work: whether what is pending goes on; new input gives it up, and keeps the state alone.
        run_id: the run, for the error.

    Raises:
        RunRefused: GRAPH_CHANGED, saying why.
    """
    if old.version == new.version:
        return
    metadata = {"run_id": run_id, "version": new.version, "pinned_version": old.version}
    if not allowed:
        message = (
            f"it was begun under version {old.version[:12]} of graph '{old.name}'; go on with "
            "that version, take another thread, or allow the change (allow_graph_change)"
        )
        raise RunRefused("GRAPH_CHANGED", message, metadata)
    pending = pending_work(old, position, tasks) if keeps_work else _state_alone(position)
    reasons = broken_by(old, new, pending)
    if reasons:
        raise RunRefused("GRAPH_CHANGED", "; ".join(reasons[:MOST_REASONS]), metadata)


def pending_work(old: CompiledGraph, position: Position, tasks: Sequence[TaskRecord]) -> PendingWork:
    """What is under way where a run of a version stands, with the ``tasks`` of its open superstep."""
    work = position.work
    nodes = (*(item.node for item in (*work.activations, *work.deferred)), *(task.node for task in tasks))
    carried = (item.node for item in work.activations if item.carried is not None)
    begun = (task.node for task in tasks if task.state not in ENDED)
    kept = (run.node for run in position.kept.values())
    inside = dict.fromkeys(name for name in (*carried, *begun, *kept) if name in old.subgraphs)
    return PendingWork(nodes, work.rounds, position.state, tuple(inside))


def _state_alone(position: Position) -> PendingWork:
    """What new input goes on with: the state, and that of embedded graphs which keep theirs."""
    return PendingWork(state=position.state, kept_subgraphs=tuple(run.node for run in position.kept.values()))
