"""Pipelines at random: what they make is what a naive join of paths makes, and every check of VerifyLineage holds."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pipeline_flows import Ran, ToolFailed, plan_of, run

from agenttx_server.engine.json_values import canonical
from agenttx_server.lineage.components import Components, can_be_told_apart
from agenttx_server.lineage.dataflow import Dataflow
from agenttx_server.lineage.definition import Action, PipelineDefinition
from agenttx_server.lineage.document import read_document
from agenttx_server.lineage.ledger import Batch
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.verification import verify_lineage

Path = dict[str, int]


def chance(*parts: object, out_of: int) -> int:
    """A number below ``out_of`` that the parts alone decide."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") % out_of


def path_key(path: Path) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(path.items()))


def rows_of(action: str, path: Path, seed: int) -> int:
    return (1, 1, 1, 2, 3)[chance("rows", action, path_key(path), seed, out_of=5)]


def fails(action: str, path: Path, seed: int) -> bool:
    return chance("fails", action, path_key(path), seed, out_of=8) == 0


def admits(action: str, path: Path, seed: int) -> bool:
    return chance("admits", action, path_key(path), seed, out_of=3) > 0


@st.composite
def pipelines(draw: st.DrawFn, *, files: bool) -> PipelineDefinition:
    """``files``: FILE tools that aggregate and join too, collecting, groups by a field: what the model does not know."""
    actions: list[dict[str, Any]] = []
    lossy: set[str] = set()
    lossy_groups: set[str] = set()
    for index in range(draw(st.integers(1, 6))):
        names = [action["name"] for action in actions]
        dependencies = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
        if not files and lossy_groups.intersection(dependencies):
            # A group meets its members alone, which are not all: the model takes it to be of all of its root.
            dependencies = dependencies[:1]
        action: dict[str, Any] = {
            "name": f"a{index}",
            "dependencies": dependencies,
            "on_failed_branch": draw(st.sampled_from(["block", "continue"])),
        }
        kind = draw(st.sampled_from(["plain", "plain", "guard", "reduce", "file"]))
        if kind == "reduce":
            action["reduce"] = {"by": "root" if not files or not dependencies else draw(BY)}
        elif len(dependencies) > 1:
            action["on_multiple"] = draw(st.sampled_from(["product", "collect"])) if files else "product"
        if kind == "guard" and dependencies:
            on_false = draw(st.sampled_from(["skip", "filter"]))
            action["guard"] = {"condition": f"{dependencies[0]}.for_a{index} == true", "on_false": on_false}
        if kind == "file":
            action["granularity"] = "file"
        if lossy_groups.intersection(dependencies) or (kind == "reduce" and lossy.intersection(dependencies)):
            lossy_groups.add(action["name"])
        if kind in ("guard", "file") or lossy.intersection(dependencies):
            lossy.add(action["name"])
        actions.append(action)
    return read_document({"actions": actions}, "p").definition


BY = st.sampled_from(["root", "source.group"])


# --- the naive model ------------------------------------------------------------------------------


@dataclass
class Entry:
    """One result: where it is on each action's rows, its state, and which namespaces are null."""

    path: Path
    state: str
    nulls: frozenset[str] = frozenset()
    seen: dict[str, Path | None] = field(default_factory=dict)


def joined(branches: list[list[Entry]]) -> Iterator[tuple[Entry, ...]]:
    for chosen in product(*branches):
        merged: Path = {}
        if all(merged.setdefault(name, row) == row for entry in chosen for name, row in entry.path.items()):
            yield chosen


def model(plan: Plan, roots: int, seed: int) -> dict[str, list[Entry]]:
    results = {
        "source": [Entry({"source": root}, "ok", seen={"source": {"source": root}}) for root in range(roots)]
    }
    for name in plan.order:
        action = plan.actions[name]
        branches = [results[item] for item in plan.topology.dependencies[name]]
        if action.granularity.value == "file":
            results[name] = list(filed(action, list(joined(branches)), seed))
        elif action.reduce is not None:
            results[name] = list(reduced(action, [e for branch in branches for e in branch], roots, seed))
        else:
            results[name] = [entry for chosen in joined(branches) for entry in applied(action, chosen, seed)]
    return results


def visible(action: Action, chosen: tuple[Entry, ...]) -> Path:
    paths = [entry.seen.get(name) for entry in chosen for name in (action.dependencies or ("source",))]
    return {key: row for path in paths if path is not None for key, row in path.items()}


def together(chosen: tuple[Entry, ...]) -> Entry:
    """What meets, before the action does anything."""
    path = {key: row for entry in chosen for key, row in entry.path.items()}
    nulls = frozenset().union(*(entry.nulls for entry in chosen))
    seen = {key: value for entry in reversed(chosen) for key, value in entry.seen.items()}
    return Entry(path, "", nulls, seen)


def passed_by(action: Action, chosen: tuple[Entry, ...]) -> Entry | None:
    """What goes on without the action being asked; None where it is."""
    name, met = action.name, together(chosen)
    nulls, seen = met.nulls | {name}, {**met.seen, name: None}
    states = {entry.state for entry in chosen}
    if "filtered" in states:
        return Entry(met.path, "filtered", nulls, seen)
    if any(state.startswith("failed") for state in states) and action.on_failed_branch.value == "block":
        return Entry({**met.path, name: 0}, "failed", nulls, seen)
    if states == {"dropped"}:
        return Entry(met.path, "dropped", nulls, seen)
    return None


def filed(action: Action, inputs: list[tuple[Entry, ...]], seed: int) -> Iterator[Entry]:
    """A FILE tool that keeps, drops or doubles each record: a call for each file, which fails where nothing is left."""
    name = action.name
    files: dict[int, list[tuple[Entry, ...]]] = {}
    for chosen in inputs:
        passed = passed_by(action, chosen)
        if passed is not None:
            yield passed
        else:
            files.setdefault(together(chosen).path["source"] // 2, []).append(chosen)
    for received in files.values():
        kept = [kept_of(name, visible(action, chosen), seed) for chosen in received]
        for chosen, count in zip(received, kept, strict=True):
            met = together(chosen)
            gone = Entry(met.path, "dropped", met.nulls | {name}, {**met.seen, name: None})
            if not any(kept):
                yield Entry(met.path, "failed no record", gone.nulls, gone.seen)
            elif not count:
                yield gone
            for row in range(count):
                own = {**visible(action, chosen), name: row}
                yield Entry({**met.path, name: row}, "ok", met.nulls, {**met.seen, name: own})


def kept_of(action: str, path: Path, seed: int) -> int:
    return (0, 1, 1, 2)[chance("kept", action, path_key(path), seed, out_of=4)]


def applied(action: Action, chosen: tuple[Entry, ...], seed: int) -> Iterator[Entry]:
    name, met = action.name, together(chosen)
    path, nulls, seen = met.path, met.nulls, met.seen
    without = Entry(path, "", nulls | {name}, {**seen, name: None})
    passed = passed_by(action, chosen)
    if passed is not None:
        yield passed
    elif action.guard is not None and not guard_holds(action, seen, seed):
        if action.guard.on_false.value == "filter":
            yield Entry(path, "filtered", without.nulls, without.seen)
        else:
            yield Entry({**path, name: 0}, "skip", without.nulls, without.seen)
    else:
        shown = visible(action, chosen)
        if fails(name, shown, seed):
            yield Entry(path, "failed no record", without.nulls, without.seen)
            return
        for row in range(rows_of(name, shown, seed)):
            yield Entry({**path, name: row}, "ok", nulls, {**seen, name: {**shown, name: row}})


def guard_holds(action: Action, seen: dict[str, Path | None], seed: int) -> bool:
    path = seen[action.dependencies[0]]
    return path is not None and admits(action.name, path, seed)


def reduced(action: Action, entries: list[Entry], roots: int, seed: int) -> Iterator[Entry]:
    for root in range(roots):
        members = [entry for entry in entries if entry.path["source"] == root]
        kept = [entry for entry in members if entry.state not in ("filtered", "dropped")]
        path = {"source": root}
        if not kept:
            states = {entry.state for entry in members}
            if states:
                yield Entry(path, max(states, key=("filtered", "dropped").index), seen={action.name: None})
        elif any(e.state.startswith("failed") for e in kept) and action.on_failed_branch.value == "block":
            yield Entry({**path, action.name: 0}, "failed", seen={action.name: None})
        elif fails(action.name, path, seed):
            yield Entry(path, "failed no record", seen={action.name: None})
        else:
            for row in range(rows_of(action.name, path, seed)):
                own = {"source": root, action.name: row}
                yield Entry(own, "ok", seen={action.name: own})


# --- the real thing -------------------------------------------------------------------------------


def carried_out(plan: Plan, roots: int, seed: int, *, backwards: bool = False, keeps: bool = False) -> Ran:
    order = (lambda calls: calls[::-1]) if backwards else (lambda calls: calls)
    tools = tools_of(plan, seed, keeps=keeps)
    return run(plan, rows_given(roots), tools, order=order, paths=paths_given(roots))


def paths_given(roots: int) -> list[str]:
    return [f"file {root // 2}" for root in range(roots)]


def rows_given(roots: int) -> list[dict[str, Any]]:
    return [{"path": {"source": root}, "group": root % 2} for root in range(roots)]


def tools_of(plan: Plan, seed: int, *, keeps: bool = False) -> dict[str, Any]:
    """``keeps``: FILE tools only keep, drop or double records, as the model knows them."""

    def row_of(path: Path) -> dict[str, Any]:
        return {"path": path, **{f"for_{other}": admits(other, path, seed) for other in plan.order}}

    def tool_of(action: Action) -> Any:
        def tool(arguments: dict[str, Any]) -> Any:
            if action.granularity.value == "file" and keeps:
                outputs = []
                for record in arguments["records"]:
                    path = shown_to(action, record["data"])
                    for row in range(kept_of(action.name, path, seed)):
                        own = row_of({**path, action.name: row})
                        outputs.append({"source_index": record["source_index"], "data": own})
                return {"records": outputs}
            if action.granularity.value == "file":
                return file_answer(action, len(arguments["records"]), seed)
            path = shown_to(action, arguments)
            if fails(action.name, path, seed):
                raise ToolFailed("by chance")
            return [row_of({**path, action.name: row}) for row in range(rows_of(action.name, path, seed))]

        return tool

    return {name: tool_of(plan.actions[name]) for name in plan.order}


def carried_out_apart(plan: Plan, roots: int, seed: int) -> Ran:
    """Each root by itself, and what is behind the barriers a unit at a time: as runs do it."""
    tools = tools_of(plan, seed)
    below = plan.below_barriers
    ran = Ran(plan, Dataflow(plan, "run-1"))
    events = []
    flows = []
    components = Components()
    paths = paths_given(roots)
    for place, row in enumerate(rows_given(roots)):
        root = Dataflow(plan, "run-1")
        root.receive(row, 0, relative_path=paths[place], place=place)
        for name in plan.order:
            if name not in below:
                settle(root, name, tools)
        batch = root.take()
        ran.made += batch.records
        ran.edges += batch.edges
        events += root.events()
        flows.append(root)
        components.add(place, keys_of(plan, root, paths[place]))
    for ranges in components.ranges() if plan.barriers else []:
        flow = Dataflow(plan, "run-1")
        for first, last in ranges:
            for place in range(first, last + 1):
                flow.absorb(flows[place])
        assert flow.take() == Batch()
        for name in plan.order:
            if name in below:
                settle(flow, name, tools)
        batch = flow.take()
        ran.made += batch.records
        ran.edges += batch.edges
        events += flow.events()
    breaches = verify_lineage(ran.made, ran.edges, events, plan.topology.consumers)
    assert breaches == []
    return ran


def keys_of(plan: Plan, root: Dataflow, path: str) -> set[str]:
    """What a root has in common with others behind barriers; as pipelines.barrier has it."""
    if not can_be_told_apart(plan):
        return {"all"}
    keys: set[str] = set()
    for name in plan.barriers:
        if plan.actions[name].reduce is None:
            keys.add(f"file:{path}")
        else:
            keys |= {f"{name}:{key}" for key in root.group_keys(name)}
    return keys


def settle(flow: Dataflow, name: str, tools: dict[str, Any]) -> None:
    for call in flow.calls(name):
        if call.problem:
            flow.fail(call, call.problem)
            continue
        try:
            answer = tools[name](dict(call.arguments))
        except ToolFailed as failed:
            flow.fail(call, str(failed))
        else:
            flow.complete(call, answer)


def shapes(ran: Ran) -> list[Any]:
    """The records without what is derived of places in a flow: their content, and what they came of by content."""
    known = {record.target_id: (record.action, canonical(dict(record.content))) for record in ran.made}
    above: dict[str, list[Any]] = {}
    for edge in sorted(ran.edges, key=lambda edge: (edge.child, edge.ordinal)):
        above.setdefault(edge.child, []).append((edge.kind, known[edge.parent]))
    return sorted(
        repr((*known[record.target_id], state_of(record), record.is_root, above.get(record.target_id)))
        for record in ran.made
    )


def shown_to(action: Action, arguments: dict[str, Any]) -> Path:
    if action.reduce is not None:
        source = arguments["records"][0]["data"].get("source") or {"path": {}}
        # Collected, a namespace is a list.
        first = source[0] if isinstance(source, list) else source
        return dict((first or {"path": {}})["path"])
    path: Path = {}
    for name in action.dependencies or ("source",):
        value = arguments.get(name)
        for item in value if isinstance(value, list) else [value]:
            path.update((item or {}).get("path") or {})
    return path


def file_answer(action: Action, received: int, seed: int) -> dict[str, Any]:
    outputs = []
    for index in range(received):
        kind = chance("file", action.name, index, seed, out_of=6)
        source: Any = {0: None, 1: list(range(index + 1))}.get(kind, index)
        if kind != 2:
            outputs += [{"source_index": source, "data": {"path": {}}}] * (1 + (kind == 3))
    return {"records": outputs}


def state_of(record: Any) -> str:
    if record.unprocessed is None:
        return "ok"
    return "skip" if record.unprocessed.value == "guard_skip" else "failed"


@settings(max_examples=60, deadline=None)
@given(pipelines(files=False), st.integers(1, 4), st.integers(0, 10_000))
def test_records_are_those_of_a_naive_join(definition: PipelineDefinition, roots: int, seed: int):
    plan = Plan(definition)
    ran = carried_out(plan, roots, seed, keeps=True)
    expected = model(plan, roots, seed)

    by_root = {record.target_id: place for place, record in enumerate(ran.records("source"))}
    for name in plan.order:
        made = Counter((by_root[r.root_target_id], state_of(r)) for r in ran.records(name))
        wanted = Counter(
            (e.path["source"], e.state) for e in expected[name] if e.state in ("ok", "skip", "failed")
        )
        assert made == wanted, name


@settings(max_examples=40, deadline=None)
@given(pipelines(files=True), st.integers(1, 4), st.integers(0, 10_000))
def test_every_check_holds_whatever_the_actions_do(definition: PipelineDefinition, roots: int, seed: int):
    plan = Plan(definition)
    ran = carried_out(plan, roots, seed)
    again = carried_out(plan, roots, seed, backwards=True)

    for name in plan.order:
        assert ran.json(name) == again.json(name)


@settings(max_examples=60, deadline=None)
@given(pipelines(files=True), st.integers(1, 5), st.integers(0, 10_000))
def test_behind_barriers_all_is_as_in_one_flow_for_all_roots(
    definition: PipelineDefinition, roots: int, seed: int
):
    plan = Plan(definition)
    assert shapes(carried_out_apart(plan, roots, seed)) == shapes(carried_out(plan, roots, seed))


def test_the_checks_notice_what_is_taken_away_or_changed():
    plan = plan_of("actions: [{name: a}, {name: b}, {name: c, dependencies: [a, b]}]")
    ran = run(plan, [{"q": 1}])
    events = ran.flow.events()

    def codes(records: Any = None, edges: Any = None, kept: Any = None) -> set[str]:
        found = verify_lineage(
            ran.made if records is None else records,
            ran.edges if edges is None else edges,
            events if kept is None else kept,
            plan.topology.consumers,
        )
        return {breach.code for breach in found}

    assert codes() == set()
    for index in range(len(events)):
        assert codes(kept=[*events[:index], *events[index + 1 :]]) != set()
        assert "EVENT_TWICE" in codes(kept=[*events, events[index]])
    for index in range(len(ran.made)):
        assert codes(records=[*ran.made[:index], *ran.made[index + 1 :]]) != set()
    for index in range(len(ran.edges)):
        assert codes(edges=[*ran.edges[:index], *ran.edges[index + 1 :]]) != set()
    ran.made[1].content["a"]["by"] = "somebody else"
    assert codes() == {"CONTENT_CHANGED"}
