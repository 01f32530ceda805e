"""The lineage of a run in forms that other programs read, piece by piece: memory holds one root at a time.

PROV-JSON as in the W3C member submission of 24 April 2013; OpenLineage run events as in its specification 2-0-2.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.json_values import canonical, load
from agenttx_server.lineage.definition import SOURCE
from agenttx_server.lineage.document import read_document
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.ports import KeptRecord
from agenttx_server.lineage.records import RecordEdge, to_json
from agenttx_server.pipelines.barrier import units_behind
from agenttx_server.pipelines.counting import status_of_action
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import (
    ActionCounts,
    InputState,
    PipelineRunRecord,
    PipelineRunStatus,
)

__all__ = ["ExportForm", "export_lineage", "export_transaction"]

_PAGE: Final = 256
_PIECE: Final = 256 * 1024
_COMMITTED: Final = frozenset({InputState.COMMITTED})
_PRODUCER: Final = "urn:agenttx"
_FACETS: Final = "https://openlineage.io/spec/facets"
_Roots: TypeAlias = Callable[[], AsyncIterator[list[KeptRecord]]]
"""Gives the records of each transaction, one after the other; asked again for each way through them."""


class ExportForm(StrEnum):
    """What is written."""

    RECORDS = "RECORDS"
    PROV_JSON = "PROV_JSON"
    OPENLINEAGE = "OPENLINEAGE"


async def export_lineage(
    store: PipelineStore, run: PipelineRunRecord, form: ExportForm
) -> AsyncIterator[str]:
    """Yield the text of a run in pieces of some 256 KiB."""

    def roots() -> AsyncIterator[list[KeptRecord]]:
        return _roots(store, run.run_id)

    written = {
        ExportForm.RECORDS: lambda: _records(roots),
        ExportForm.PROV_JSON: lambda: _prov(store, roots),
        ExportForm.OPENLINEAGE: lambda: _openlineage(store, run),
    }
    async for piece in _in_pieces(written[form]()):
        yield piece


async def export_transaction(
    store: PipelineStore, transaction_id: str, form: ExportForm
) -> AsyncIterator[str]:
    """Yield the text of what a plain transaction kept. Raises InvalidRequest for OpenLineage, which tells of jobs."""
    if form is ExportForm.OPENLINEAGE:
        raise InvalidRequest(
            (
                FieldViolation(
                    "format",
                    "is of runs of pipelines, and this is a transaction; ask for records or PROV-JSON",
                ),
            )
        )

    async def roots() -> AsyncIterator[list[KeptRecord]]:
        yield list(await store.lineage.records_of(transaction_id))

    text = _records(roots) if form is ExportForm.RECORDS else _prov(store, roots)
    async for piece in _in_pieces(text):
        yield piece


async def _in_pieces(texts: AsyncIterator[str]) -> AsyncIterator[str]:
    piece: list[str] = []
    size = 0
    async for text in texts:
        piece.append(text)
        size += len(text)
        if size >= _PIECE:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


async def _roots(store: PipelineStore, run_id: str) -> AsyncIterator[list[KeptRecord]]:
    """The records of each transaction that was committed, in the order of the rows."""
    place, before = -1, ""
    while page := await store.list_inputs(run_id, place, _PAGE, _COMMITTED):
        for item in page:
            if item.transaction_id != before:
                before = item.transaction_id
                yield list(await store.lineage.records_of(before))
        place = page[-1].place
    async for unit in units_behind(store, run_id, _COMMITTED):
        yield list(await store.lineage.records_of(unit.transaction_id))


# --- records --------------------------------------------------------------------------------------


async def _records(roots: _Roots) -> AsyncIterator[str]:
    async for root in roots():
        for kept in root:
            record = kept.record
            line = {
                **to_json(record),
                "action": record.action,
                "relative_path": record.relative_path,
                "content_hash": record.content_hash,
            }
            yield canonical(line) + "\n"


# --- PROV-JSON ------------------------------------------------------------------------------------


async def _prov(store: PipelineStore, roots: _Roots) -> AsyncIterator[str]:
    """One document, a section after the other: each is a way through all roots."""
    prefixes = {
        "agenttx": "urn:agenttx:",
        "record": "urn:agenttx:record:",
        "call": "urn:agenttx:call:",
    }
    yield '{"prefix":' + canonical(prefixes)
    for section in ("entity", "activity", "wasGeneratedBy", "used", "wasDerivedFrom"):
        yield f',"{section}":{{'
        separator = ""
        number = 0
        async for root in roots():
            edges: Iterable[RecordEdge] = ()
            if section in ("used", "wasDerivedFrom"):
                edges = await store.lineage.edges_of([kept.record.target_id for kept in root])
            for name, value in _section(section, root, edges):
                # What has no name of its own has a blank one, and so needs a number.
                number += 1
                key = name or f"_:{section}{number}"
                yield f"{separator}{canonical(key)}:{canonical(value)}"
                separator = ","
        yield "}"
    yield "}\n"


def _section(
    section: str, root: Iterable[KeptRecord], edges: Iterable[RecordEdge]
) -> Iterator[tuple[str, dict[str, Any]]]:
    calls = {kept.record.target_id: _call(kept) for kept in root}
    if section == "entity":
        for kept in root:
            yield f"record:{kept.record.target_id}", _entity(kept)
    elif section == "activity":
        told = set()
        for kept in root:
            call = _call(kept)
            if call not in told:
                told.add(call)
                yield call, {"agenttx:action": kept.record.action, "agenttx:step": kept.step_id}
    elif section == "wasGeneratedBy":
        for kept in root:
            yield "", {"prov:entity": f"record:{kept.record.target_id}", "prov:activity": _call(kept)}
    elif section == "used":
        pairs = dict.fromkeys((calls[edge.child], edge.parent) for edge in edges)
        for call, parent in pairs:
            yield "", {"prov:activity": call, "prov:entity": f"record:{parent}"}
    else:
        for edge in edges:
            yield (
                "",
                {
                    "prov:generatedEntity": f"record:{edge.child}",
                    "prov:usedEntity": f"record:{edge.parent}",
                    "prov:activity": calls[edge.child],
                    "agenttx:kind": edge.kind.value,
                },
            )


def _entity(kept: KeptRecord) -> dict[str, Any]:
    record = kept.record
    entity: dict[str, Any] = {
        "prov:type": {"$": "agenttx:Record", "type": "prov:QUALIFIED_NAME"},
        "agenttx:action": record.action,
        "agenttx:pipeline": kept.pipeline,
        "agenttx:root": record.root_target_id,
        "agenttx:source_guid": record.source_guid,
        "agenttx:node_id": record.node_id,
        "agenttx:content_hash": record.content_hash,
    }
    if record.unprocessed is not None:
        entity["agenttx:unprocessed"] = record.unprocessed.value
    return entity


def _call(kept: KeptRecord) -> str:
    """The activity that made a record: its step, or where none did what was done without one."""
    if kept.step_id:
        return f"call:{kept.transaction_id}.{kept.step_id}"
    return f"call:{kept.transaction_id}.{kept.record.action}"


# --- OpenLineage ----------------------------------------------------------------------------------


async def _openlineage(store: PipelineStore, run: PipelineRunRecord) -> AsyncIterator[str]:
    plan = Plan(read_document(load(run.definition)).definition)
    counts = {item.action: item for item in run.counts}
    rows = await store.lineage.count_records(run.run_id)
    yield _line(_event(run, "START", run.created_at))
    for action in plan.order:
        yield _line(_of_action(run, plan, action, "START", counts, rows))
    if run.status.is_final:
        for action in plan.order:
            found = counts.get(action, ActionCounts(action))
            ended = "FAIL" if status_of_action(found) == "FAILED" else "COMPLETE"
            yield _line(_of_action(run, plan, action, ended, counts, rows))
        yield _line(_event(run, _ENDED[run.status], run.updated_at))


_ENDED: Final = {
    PipelineRunStatus.COMPLETED: "COMPLETE",
    PipelineRunStatus.COMPLETED_WITH_FAILURES: "COMPLETE",
    PipelineRunStatus.FAILED: "FAIL",
    PipelineRunStatus.CANCELLED: "ABORT",
}


def _line(event: Mapping[str, Any]) -> str:
    return canonical(dict(event)) + "\n"


def _event(run: PipelineRunRecord, kind: str, at: int) -> dict[str, Any]:
    return {
        "eventType": kind,
        "eventTime": _time(at),
        "run": {"runId": run.run_id, "facets": {}},
        "job": {"namespace": "agenttx", "name": run.pipeline, "facets": {}},
        "inputs": [],
        "outputs": [],
        "producer": _PRODUCER,
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }


def _of_action(
    run: PipelineRunRecord,
    plan: Plan,
    action: str,
    kind: str,
    counts: Mapping[str, ActionCounts],
    rows: Mapping[str, int],
) -> dict[str, Any]:
    event = _event(run, kind, run.created_at if kind == "START" else run.updated_at)
    event["run"] = {
        "runId": str(uuid.uuid5(uuid.UUID(run.run_id), action)),
        "facets": {
            "parent": {
                "_producer": _PRODUCER,
                "_schemaURL": f"{_FACETS}/1-0-1/ParentRunFacet.json#/$defs/ParentRunFacet",
                "run": {"runId": run.run_id},
                "job": {"namespace": "agenttx", "name": run.pipeline},
            }
        },
    }
    event["job"] = {"namespace": "agenttx", "name": f"{run.pipeline}.{action}", "facets": {}}
    event["inputs"] = [
        {"namespace": "agenttx", "name": f"{run.pipeline}.{name}", "facets": {}}
        for name in plan.actions[action].dependencies or (SOURCE,)
    ]
    output: dict[str, Any] = {"namespace": "agenttx", "name": f"{run.pipeline}.{action}", "facets": {}}
    if kind != "START":
        output["outputFacets"] = {
            "outputStatistics": {
                "_producer": _PRODUCER,
                "_schemaURL": (
                    f"{_FACETS}/1-0-2/OutputStatisticsOutputDatasetFacet.json"
                    "#/$defs/OutputStatisticsOutputDatasetFacet"
                ),
                "rowCount": rows.get(action, 0),
            }
        }
    event["outputs"] = [output]
    return event


def _time(at: int) -> str:
    return (
        datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
