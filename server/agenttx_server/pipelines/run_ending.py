"""How a run has ended, by how its rows and what is behind its barriers stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from agenttx_server.engine.frozen import changed
from agenttx_server.lineage.plan import Plan
from agenttx_server.pipelines.barrier import named, units_behind
from agenttx_server.pipelines.counting import added, status_of_run
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import (
    ActionCounts,
    InputState,
    PipelineRunRecord,
    PipelineRunStatus,
)

__all__ = ["ended_run"]

_PAGE: Final = 256
_ALL: Final = frozenset(InputState)
_MOST_REASONS: Final = 5


async def ended_run(
    store: PipelineStore,
    run: PipelineRunRecord,
    plan: Plan,
    now: int,
    waits: Sequence[str],
    *,
    is_cancelled: bool,
    has_barriers: bool,
) -> PipelineRunRecord:
    """Return a run as it stands now that nobody carries it on. ``waits``: why what is left does not go on.

    Raises StoreUnavailable.
    """
    counts: dict[str, ActionCounts] = {}
    states = dict.fromkeys(InputState, 0)
    reasons: list[str] = []
    place = -1
    while page := await store.list_inputs(run.run_id, place, _PAGE, _ALL):
        for item in page:
            states[item.state] += 1
            counts = added(counts, item.counts)
            if item.reason and len(reasons) < _MOST_REASONS:
                reasons.append(f"row {item.place}: {item.reason}")
        place = page[-1].place
    units = dict.fromkeys(InputState, 0)
    async for unit in units_behind(store, run.run_id):
        units[unit.state] += 1
        counts = added(counts, unit.counts)
        if unit.reason and len(reasons) < 2 * _MOST_REASONS:
            reasons.append(f"{named(unit)}: {unit.reason}")
    status = status_of_run(
        counts.values(), committed=states[InputState.COMMITTED], rolled_back=states[InputState.FAILED]
    )
    if states[InputState.RUNNING]:
        status = PipelineRunStatus.INTERRUPTED
    elif states[InputState.PENDING]:
        status = PipelineRunStatus.CANCELLED if is_cancelled else PipelineRunStatus.INTERRUPTED
    elif has_barriers and states[InputState.COMMITTED]:
        status = _behind_barriers(units, status, is_cancelled=is_cancelled)
    ended = {
        "status": status,
        "updated_at": now,
        "reason": "; ".join([*waits, *reasons])[:2000],
        "counts": tuple(counts[name] for name in plan.order if name in counts),
        "committed": states[InputState.COMMITTED],
        "failed": states[InputState.FAILED],
    }
    return changed(run, ended)


def _behind_barriers(
    units: Mapping[InputState, int], status: PipelineRunStatus, *, is_cancelled: bool
) -> PipelineRunStatus:
    """How a run stands whose roots are through, by how many units behind its barriers stand how."""
    if units[InputState.RUNNING]:
        return PipelineRunStatus.INTERRUPTED
    if units[InputState.PENDING] or not sum(units.values()):
        return PipelineRunStatus.CANCELLED if is_cancelled else PipelineRunStatus.INTERRUPTED
    if not units[InputState.FAILED]:
        return status
    if not units[InputState.COMMITTED]:
        return PipelineRunStatus.FAILED
    return PipelineRunStatus.COMPLETED_WITH_FAILURES if status is PipelineRunStatus.COMPLETED else status
