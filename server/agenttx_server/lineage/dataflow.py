"""What each action is called with, and what its answers become: the rules of propagation, for one root or for many.

    flow = Dataflow(plan, run_id)
    flow.receive({"text": "…"}, occurrence=0)
    for action in plan.order:
        for call in flow.calls(action):
            flow.complete(call, answer)            # or flow.fail(call, reason)
        batch = flow.take()                        # records, edges and events that are new

Calls of an action may be settled in any order; the result is the same. Ids are derived: a flow that is made again with the
same answers and salts makes the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agenttx_server.engine.frozen import changed, dataclass
from agenttx_server.engine.json_values import JsonValue, Missing, canonical
from agenttx_server.lineage.definition import Action, Granularity, OnEmpty, OnFalse
from agenttx_server.lineage.file_outputs import FileOutput, FileOutputRefused, read_file_outputs
from agenttx_server.lineage.flows import FlowState, Input, Several
from agenttx_server.lineage.guards import judge
from agenttx_server.lineage.ledger import Ledger, as_namespace, shared
from agenttx_server.lineage.limits import MAX_GROUPED, MAX_ROWS_PER_CALL
from agenttx_server.lineage.merging import merged_inputs, single_input
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.prompts import PromptUnrendered
from agenttx_server.lineage.records import EventType, Reason, Record, Unprocessed
from agenttx_server.lineage.templates import ArgumentUnresolved, at_path, fill
from agenttx_server.lineage.views import observed, passed_through

__all__ = ["Call", "Dataflow", "GuardWarning"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that an action asks for.

    Attributes:
        ordinal: its place among what the action takes, from 0; not dense, as not all that it takes is called for.
        inputs: one, or the group or file that the tool gets at once.
        arguments: what the tool gets.
        problem: why it can't be called at all; empty if it can.
    """

    action: str
    ordinal: int
    inputs: tuple[Input, ...]
    arguments: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GuardWarning:
    """A guard that had no answer, or did not hold with ``on_false: warn``; once for each action and message."""

    action: str
    message: str


class Dataflow(Ledger):
    """The records of one unit of work. What no call made has its id of what it was made of."""

    def __init__(self, plan: Plan, run_id: str) -> None:
        super().__init__(plan.topology, run_id)
        self._plan = plan
        self.warnings: dict[GuardWarning, None] = {}

    def calls(self, name: str) -> list[Call]:
        """Take what the action's dependencies gave; settle what needs no call, and return the calls.

        Raises:
            MergeRefused: branches meet that fanned out each, and the action does not say how.
        """
        action = self._plan.actions[name]
        self._flows[name] = {}
        if action.reduce is not None:
            return self._reduce_calls(action)
        admitted = self._admitted(action, self._inputs(action))
        if action.granularity is Granularity.FILE:
            return self._file_calls(action, admitted)
        return [self._call(action, ordinal, item) for ordinal, item in admitted]

    def group_keys(self, name: str) -> set[str]:
        """The groups of a ``reduce`` by a field that records here are of, before it is called."""
        action = self._plan.actions[name]
        items = (
            single_input(action, flow)
            for above in self._plan.topology.dependencies[name]
            for flow in self.flows(above)
        )
        keys = {self._group_of(action, item) for item in items if item.state is FlowState.LIVE}
        return {key for key in keys if key is not None}

    def complete(self, call: Call, answer: JsonValue, salt: str = "") -> str:
        """Make records of a tool's answer. An answer that is not accepted is a failure: its reason is returned."""
        action = self._plan.actions[call.action]
        if action.granularity is Granularity.FILE:
            try:
                outputs = read_file_outputs(answer, len(call.inputs))
            except FileOutputRefused as refused:
                return self.fail(call, refused.message)
            if outputs:
                self._file_records(action, call, outputs, salt)
                return ""
            return self._empty(action, call)
        rows = answer if isinstance(answer, list) else [answer]
        if answer is None or not rows:
            return self._empty(action, call)
        if len(rows) > MAX_ROWS_PER_CALL:
            return self.fail(call, f"{len(rows):,} rows are more than {MAX_ROWS_PER_CALL:,}")
        self._row_records(action, call, rows, salt)
        return ""

    def fail(self, call: Call, reason: str) -> str:
        """The call has failed: what comes below its inputs is blocked. Returns the reason."""
        contributors = tuple(dict.fromkeys(r for item in call.inputs for r in item.contributors))
        for record in contributors:
            self._account(call.action, record, EventType.FAIL, Reason.ERROR, (), reason)
        is_file = self._plan.actions[call.action].granularity is Granularity.FILE
        for item in call.inputs if is_file else (_grouped(call.inputs),):
            self._carry(call.action, call.ordinal, item, FlowState.FAILED, blocked_by=call.action)
        return reason

    # --- what an action takes -------------------------------------------------------------------

    def _inputs(self, action: Action) -> list[Input]:
        names = self._plan.topology.dependencies[action.name]
        if len(names) == 1:
            return [single_input(action, flow) for flow in self.flows(names[0])]
        branches = {name: self.flows(name) for name in names}
        versions_of = {name: self._plan.actions[name].base for name in names if name in self._plan.actions}
        return merged_inputs(action, self._plan.topology, self._ancestry, branches, versions_of)

    def _admitted(self, action: Action, inputs: Sequence[Input]) -> list[tuple[int, Input]]:
        return [
            (ordinal, item)
            for ordinal, item in enumerate(inputs)
            if self._passes_state(action, ordinal, item) and self._passes_guard(action, ordinal, item)
        ]

    def _passes_state(self, action: Action, ordinal: int, item: Input) -> bool:
        if item.state is FlowState.LIVE:
            return True
        if item.state is FlowState.FAILED:
            self._tombstone(action, ordinal, item)
            return False
        for record in item.contributors if item.is_merge else ():
            if record.action in self._plan.topology.dependencies[action.name]:
                reason = Reason.FILTERED_BRANCH if item.state is FlowState.FILTERED else Reason.TOOL_DROPPED
                self._account(action.name, record, EventType.DROP, reason, ())
        self._carry(action.name, ordinal, item, item.state)
        return False

    def _passes_guard(self, action: Action, ordinal: int, item: Input) -> bool:
        guard = self._plan.guards.get(action.name)
        if guard is None or action.guard is None:
            return True
        verdict = judge(guard, item.content)
        if verdict.problem:
            self.warnings[GuardWarning(action.name, verdict.problem)] = None
        if verdict.holds:
            return True
        if action.guard.on_false is OnFalse.WARN:
            self.warnings[GuardWarning(action.name, "the guard does not hold for some records")] = None
            return True
        if action.guard.on_false is OnFalse.SKIP:
            self._unprocessed(action, ordinal, item, Unprocessed.GUARD_SKIP)
            return False
        for record in item.contributors:
            self._account(action.name, record, EventType.DROP, Reason.GUARD_FILTER, ())
        self._carry(action.name, ordinal, item, FlowState.FILTERED)
        return False

    def _call(self, action: Action, ordinal: int, item: Input) -> Call:
        view = observed(item.content, action.context_scope)
        if action.versions is not None:
            view["version"] = {action.versions.param: action.version}
        try:
            arguments: dict[str, Any] = view
            if action.arguments is not None:
                filled = fill(dict(action.arguments), view)
                assert isinstance(filled, dict)
                arguments = filled
            prompt = self._plan.prompts.get(action.name)
            if prompt is not None:
                arguments = {**arguments, "prompt": prompt.render(view)}
        except ArgumentUnresolved as unresolved:
            return Call(action.name, ordinal, (item,), {}, unresolved.message)
        except PromptUnrendered as unrendered:
            return Call(action.name, ordinal, (item,), {}, unrendered.message)
        return Call(action.name, ordinal, (item,), arguments)

    def _file_calls(self, action: Action, admitted: Sequence[tuple[int, Input]]) -> list[Call]:
        files: dict[str, list[tuple[int, Input]]] = {}
        for ordinal, item in admitted:
            files.setdefault(item.primary.relative_path, []).append((ordinal, item))
        return [
            _call_for_all(action, members[0][0], tuple(item for _, item in members))
            for members in files.values()
        ]

    def _reduce_calls(self, action: Action) -> list[Call]:
        groups: dict[str, list[tuple[int, Input]]] = {}
        flows = [f for name in self._plan.topology.dependencies[action.name] for f in self.flows(name)]
        for ordinal, flow in enumerate(flows):
            item = single_input(action, flow)
            key = self._group_of(action, item)
            if key is None:
                for record in item.contributors:
                    self._account(action.name, record, EventType.DROP, Reason.NO_GROUP, ())
                self._carry(action.name, ordinal, item, FlowState.DROPPED)
            else:
                groups.setdefault(key, []).append((ordinal, item))
        calls = []
        for members in groups.values():
            calls += self._group_call(action, members)
        return calls

    def _group_of(self, action: Action, item: Input) -> str | None:
        assert action.reduce is not None
        if action.reduce.is_by_root:
            return item.primary.root_target_id
        if item.state is not FlowState.LIVE:
            return f"/{item.primary.target_id}"
        value = at_path(dict(item.content), tuple(action.reduce.by.split(".")))
        return None if value is None or isinstance(value, Missing) else canonical(value)

    def _group_call(self, action: Action, members: Sequence[tuple[int, Input]]) -> list[Call]:
        ordinal = members[0][0]
        failed = [item for _, item in members if item.state is FlowState.FAILED]
        if failed:
            kept = [item for _, item in members if item.state in (FlowState.LIVE, FlowState.FAILED)]
            self._tombstone(action, ordinal, changed(_grouped(kept), {"blocked_by": failed[0].blocked_by}))
            return []
        admitted = []
        gone = []
        for place, item in members:
            if item.state is not FlowState.LIVE:
                gone.append(item)
            elif self._passes_guard(action, place, item):
                admitted.append(item)
        if admitted:
            return [_call_for_all(action, ordinal, tuple(admitted))]
        if gone and not self._flows[action.name].get(ordinal):
            states = {item.state for item in gone}
            state = FlowState.DROPPED if FlowState.DROPPED in states else FlowState.FILTERED
            self._carry(action.name, ordinal, _grouped(gone), state)
        return []

    # --- what an action gives -------------------------------------------------------------------

    def _row_records(self, action: Action, call: Call, rows: Sequence[JsonValue], salt: str) -> None:
        item = _grouped(call.inputs)
        made = []
        for index, row in enumerate(rows):
            suffix = f"_{index}" if len(rows) > 1 else ""
            own = self._own_namespace(action, row, item)
            made.append(
                self._make(
                    action, call.ordinal, item, own, (salt, index), suffix, row=index, fans=len(rows) > 1
                )
            )
        kind = EventType.JOIN if _joins(call) else EventType.FORK if len(rows) > 1 else EventType.MODIFY
        for record in item.contributors:
            self._account(action.name, record, kind, Reason.NONE, tuple(made))

    def _file_records(self, action: Action, call: Call, outputs: Sequence[FileOutput], salt: str) -> None:
        children: dict[int, list[Record]] = {index: [] for index in range(len(call.inputs))}
        joined: set[int] = set()
        counts = [0] * len(call.inputs)
        for output in outputs:
            if len(output.sources) == 1:
                counts[output.sources[0]] += 1
        rows = [0] * len(call.inputs)
        occurrences: dict[str, int] = {}
        for place, output in enumerate(outputs):
            suffix = f"_{place}" if len(outputs) > 1 else ""
            if not output.sources:
                record = self._aggregate(
                    action, call.ordinal, call.inputs, output.data, place, suffix, salt, occurrences
                )
                joined.update(children)
                for index in children:
                    children[index].append(record)
                continue
            item = _grouped([call.inputs[index] for index in output.sources])
            first = output.sources[0]
            fans = len(output.sources) == 1 and counts[first] > 1
            own = self._own_namespace(action, output.data, item)
            record = self._make(
                action,
                call.ordinal,
                item,
                own,
                (salt, place),
                suffix,
                row=rows[first],
                fans=fans,
                seed=call.inputs[0].primary.target_id,
            )
            rows[first] += fans
            for index in output.sources:
                children[index].append(record)
            if len(output.sources) > 1:
                joined.update(output.sources)
        for index, item in enumerate(call.inputs):
            self._account_file(action, call, item, children[index], is_joined=index in joined)
            if not any(child.parent_target_id for child in children[index]):
                self._carry(action.name, call.ordinal, item, FlowState.DROPPED)

    def _account_file(
        self, action: Action, call: Call, item: Input, children: Sequence[Record], *, is_joined: bool
    ) -> None:
        kind, reason = EventType.DROP, Reason.TOOL_DROPPED
        if children:
            reason = Reason.NONE
            kind = EventType.FORK if len(children) > 1 else EventType.MODIFY
            if is_joined or len(item.contributors) > 1:
                kind = EventType.JOIN
        for record in item.contributors:
            self._account(action.name, record, kind, reason, tuple(children))

    def _empty(self, action: Action, call: Call) -> str:
        if action.on_empty is OnEmpty.FAIL:
            return self.fail(call, "the output is empty; on_empty: skip or warn lets that pass")
        if action.on_empty is OnEmpty.WARN:
            self.warnings[GuardWarning(action.name, "the output is empty for some records")] = None
        item = _grouped(call.inputs)
        for record in item.contributors:
            self._account(action.name, record, EventType.DROP, Reason.ON_EMPTY, ())
        is_file = action.granularity is Granularity.FILE
        for each in call.inputs if is_file else (item,):
            self._carry(action.name, call.ordinal, each, FlowState.DROPPED)
        return ""

    def _tombstone(self, action: Action, ordinal: int, item: Input) -> None:
        self._unprocessed(action, ordinal, item, Unprocessed.UPSTREAM_UNPROCESSED)

    def _unprocessed(self, action: Action, ordinal: int, item: Input, why: Unprocessed) -> None:
        is_skip = why is Unprocessed.GUARD_SKIP
        record = self._make(
            action,
            ordinal,
            item,
            None,
            (why.value, *(contributor.target_id for contributor in item.contributors)),
            "",
            unprocessed=why,
            blocked_by=item.blocked_by,
        )
        kind, reason = (
            (EventType.ROUTE, Reason.GUARD_SKIP) if is_skip else (EventType.FAIL, Reason.UPSTREAM_UNPROCESSED)
        )
        for contributor in item.contributors:
            self._account(action.name, contributor, kind, reason, (record,), item.blocked_by)

    def _own_namespace(self, action: Action, row: JsonValue, item: Input) -> dict[str, Any]:
        own = as_namespace(row)
        if action.context_scope.passthrough:
            return {**passed_through(item.content, action.context_scope), **own}
        return own


def _grouped(inputs: Sequence[Input]) -> Input:
    """Several inputs as one: the first gives parent and lineage; of the content what is equal in all is kept."""
    first = inputs[0]
    if len(inputs) == 1:
        return first
    contributors = tuple(dict.fromkeys(record for item in inputs for record in item.contributors))
    origins = tuple(dict.fromkeys(record for item in inputs for record in item.origins))
    descent = Several(tuple(item.descent for item in inputs))
    return Input(contributors, origins, descent, shared(inputs), first.lineage)


def _joins(call: Call) -> bool:
    return len(call.inputs) > 1 or call.inputs[0].is_merge


def _call_for_all(action: Action, ordinal: int, inputs: tuple[Input, ...]) -> Call:
    if len(inputs) > MAX_GROUPED:
        return Call(
            action.name,
            ordinal,
            inputs,
            {},
            f"{len(inputs):,} records are more than {MAX_GROUPED:,} for one call",
        )
    return Call(action.name, ordinal, inputs, _rows(action, inputs))


def _rows(action: Action, inputs: Sequence[Input]) -> dict[str, Any]:
    return {
        "records": [
            {"source_index": index, "data": observed(item.content, action.context_scope)}
            for index, item in enumerate(inputs)
        ]
    }
