"""Pipelines carried out in memory: tools are functions, a call is made as soon as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agenttx_server.lineage.dataflow import Call, Dataflow
from agenttx_server.lineage.document import read_document
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.records import Record, RecordEdge, RecordEvent, to_json
from agenttx_server.lineage.validation import check_pipeline
from agenttx_server.lineage.verification import verify_lineage
from agenttx_server.lineage.yaml_text import read_yaml

Tool = Callable[[dict[str, Any]], Any]


class ToolFailed(Exception):
    """Raised by a tool of a test."""


def plan_of(text: str) -> Plan:
    reading = read_document(read_yaml(text), "test")
    errors = [v for v in (*reading.violations, *check_pipeline(reading.definition)) if not v.is_warning]
    assert errors == []
    return Plan(reading.definition)


def violations_of(text: str, name: str = "test") -> list[tuple[str, str, str]]:
    reading = read_document(read_yaml(text), name)
    found = (*reading.violations, *check_pipeline(reading.definition))
    return [(v.code, v.where, v.message) for v in found]


@dataclass
class Ran:
    """What came of it."""

    plan: Plan
    flow: Dataflow
    made: list[Record] = field(default_factory=list)
    edges: list[RecordEdge] = field(default_factory=list)
    calls: dict[str, list[Call]] = field(default_factory=dict)

    def records(self, action: str) -> list[Record]:
        return self.flow.records(action)

    def own(self, action: str) -> list[Any]:
        return [record.content[action] for record in self.records(action)]

    def json(self, action: str) -> list[dict[str, Any]]:
        return [to_json(record) for record in self.records(action)]

    def events(self, action: str) -> list[tuple[str, str, int]]:
        return [
            (event.type.value, event.reason.value, len(event.outputs))
            for event in self.flow.events()
            if event.action == action
        ]

    def event(self, action: str, record: Record) -> RecordEvent:
        (found,) = [e for e in self.flow.events() if (e.action, e.input_id) == (action, record.target_id)]
        return found

    def edges_of(self, record: Record) -> list[tuple[str, str]]:
        found = sorted((e for e in self.edges if e.child == record.target_id), key=lambda e: e.ordinal)
        return [(edge.parent, edge.kind.value) for edge in found]

    def verify(self) -> None:
        breaches = verify_lineage(self.made, self.edges, self.flow.events(), self.plan.topology.consumers)
        assert breaches == []


def run(
    text: str | Plan,
    rows: Sequence[Mapping[str, Any]],
    tools: Mapping[str, Tool] | None = None,
    *,
    order: Callable[[list[Call]], list[Call]] = lambda calls: calls,
    paths: Sequence[str] = (),
    run_id: str = "run-1",
) -> Ran:
    """Run a pipeline; a tool that is missing answers ``{"by": its action}``. ``order``: in which calls are settled."""
    plan = plan_of(text) if isinstance(text, str) else text
    ran = Ran(plan, Dataflow(plan, run_id))
    seen: list[Mapping[str, Any]] = []
    for place, row in enumerate(rows):
        ran.flow.receive(row, seen.count(row), relative_path=paths[place] if paths else "", place=place)
        seen.append(row)
    _collect(ran)
    for action in plan.order:
        calls = ran.flow.calls(action)
        ran.calls[action] = calls
        for call in order(calls):
            tool = (tools or {}).get(action) or (tools or {}).get(plan.actions[action].tool_name)
            if call.problem:
                ran.flow.fail(call, call.problem)
                continue
            try:
                answer = tool(dict(call.arguments)) if tool is not None else {"by": action}
            except ToolFailed as failed:
                ran.flow.fail(call, str(failed))
            else:
                ran.flow.complete(call, answer)
        _collect(ran)
    ran.verify()
    return ran


def _collect(ran: Ran) -> None:
    batch = ran.flow.take()
    ran.made += batch.records
    ran.edges += batch.edges
