"""Matching the records of several dependencies: by their ancestor at the nearest action that all branches come through.

Never by equal content, and never by guid. Records of different roots never meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

from agenttx_server.lineage.definition import Action, OnFailedBranch, OnMultiple
from agenttx_server.lineage.flows import Descent, Flow, FlowState, Input, Meeting, Several
from agenttx_server.lineage.limits import MAX_MERGED
from agenttx_server.lineage.records import Record
from agenttx_server.lineage.topology import Topology

__all__ = ["Ancestry", "MergeRefused", "lineage_of", "merged_inputs", "single_input"]

_Key: TypeAlias = tuple[str, ...]


class MergeRefused(Exception):
    """Branches that fanned out meet, and the action does not say how. ``message`` names them with their counts."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Ancestry:
    """The ancestors of records at an action, through merges and groups but not through aggregation."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._descent: dict[str, Descent | None] = {}
        self._found: dict[tuple[str, str], tuple[Record, ...]] = {}

    def add(self, record: Record, descent: Descent | None) -> None:
        """Know a record; an ingested or aggregated one has no descent."""
        self._descent[record.target_id] = descent

    def absorb(self, other: Ancestry) -> None:
        """Know all that another one knows."""
        self._descent.update(other._descent)

    def at(self, descent: Descent, action: str) -> tuple[Record, ...]:
        """The records of ``action`` that this came of, and those above it that came to nothing before they got there."""
        if isinstance(descent, Record):
            return self._of_record(descent, action)
        found = [records for item in descent.of if (records := self.at(item, action))]
        if isinstance(descent, Meeting) and len(found) > 1:
            # One of them may be of many (a group), another of one: where they met they were of that one. A third that came
            # to nothing above says neither.
            exact = [at for records in found if (at := [item for item in records if item.action == action])]
            first, *others = exact or found
            agreed = set(first).intersection(*others)
            if agreed:
                return tuple(item for item in first if item in agreed)
        return tuple(dict.fromkeys(item for records in found for item in records))

    def _of_record(self, record: Record, action: str) -> tuple[Record, ...]:
        if record.action == action or self._topology.is_upstream(record.action, of=action):
            return (record,)
        descent = self._descent[record.target_id]
        if descent is None or not self._topology.is_upstream(action, of=record.action):
            return ()
        key = (record.target_id, action)
        if key not in self._found:
            self._found[key] = self.at(descent, action)
        return self._found[key]

    def of_flow(self, flow: Flow, action: str) -> tuple[Record, ...]:
        """The ancestors at an action of what a flow stands for, of its root alone."""
        found = self.at(flow.descent, action)
        if flow.record is not None:
            root = flow.record.root_target_id
            found = tuple(item for item in found if item.root_target_id == root)
        exact = [item for item in found if item.action == action]
        # What stands above the action stands for what is below it, where that is here too.
        kept = tuple(
            item
            for item in found
            if item.action == action or not any(item in self._above(other, item.action) for other in exact)
        )
        return kept or flow.origins[:1]

    def _above(self, record: Record, action: str) -> tuple[Record, ...]:
        return self.at(record, action) if self._topology.is_upstream(action, of=record.action) else ()


def single_input(action: Action, flow: Flow) -> Input:
    """What an action with one dependency takes of a flow."""
    state = flow.state
    if state is FlowState.FAILED and action.on_failed_branch is OnFailedBranch.CONTINUE:
        state = FlowState.LIVE
    return Input(
        flow.origins,
        flow.origins,
        flow.descent,
        flow.content,
        lineage_of(flow.origins),
        state,
        is_merge=False,
        blocked_by=flow.blocked_by if state is FlowState.FAILED else "",
    )


def lineage_of(records: Iterable[Record]) -> tuple[str, ...]:
    """The ordered union of lineages; a source's own is not handed on."""
    return tuple(
        dict.fromkeys(node for record in records if not _is_source(record) for node in record.lineage)
    )


def _is_source(record: Record) -> bool:
    return record.is_root and record.action == "source"


def merged_inputs(
    action: Action,
    topology: Topology,
    ancestry: Ancestry,
    branches: Mapping[str, Sequence[Flow]],
    versions_of: Mapping[str, str],
) -> list[Input]:
    """Match and merge. ``versions_of`` names the action that a dependency is a version of.

    Raises:
        MergeRefused: two branches fanned out, and ``on_multiple`` is not said.
    """
    bases = {versions_of.get(name, "") for name in branches}
    keys = _Keys(topology, ancestry, branches, by_row=len(bases) == 1 and bases != {""})
    if action.on_multiple is OnMultiple.COLLECT:
        chosen = _collected(keys, branches)
    else:
        chosen = _joined(action, keys, branches)
    return [_merged(action, topology, tuple(branches), item) for item in chosen]


class _Keys:
    """What flows of branches have to agree on. ``by_row``: they are versions of one action, and meet row by row."""

    def __init__(
        self,
        topology: Topology,
        ancestry: Ancestry,
        branches: Mapping[str, Sequence[Flow]],
        *,
        by_row: bool,
    ) -> None:
        self._topology = topology
        self._ancestry = ancestry
        self._by_row = by_row
        self._rows: dict[_Key, dict[str, None]] = {}
        for name in branches if by_row else ():
            for flow in branches[name]:
                if flow.record is not None:
                    for key in self._at_forks(flow, tuple(branches)):
                        self._rows.setdefault(key, {})[flow.record.version_correlation_id] = None

    def of(self, flow: Flow, names: tuple[str, ...]) -> list[_Key]:
        """The keys of a flow where these branches, its own among them, meet; several for what has several ancestors."""
        keys = self._at_forks(flow, names)
        if not self._by_row:
            return keys
        if flow.record is not None:
            return [(*key, flow.record.version_correlation_id) for key in keys]
        # A version that made no record stands beside every row of the others.
        return [(*key, row) for key in keys for row in self._rows.get(key, ("",))]

    def _at_forks(self, flow: Flow, names: tuple[str, ...]) -> list[_Key]:
        per_fork = [
            [item.target_id for item in self._ancestry.of_flow(flow, fork)]
            for fork in self._topology.forks(*names)
        ]
        return list(product(*per_fork))


def _collected(
    keys: _Keys, branches: Mapping[str, Sequence[Flow]]
) -> Iterable[Mapping[str, tuple[Flow, ...]]]:
    groups: dict[_Key, dict[str, list[Flow]]] = {}
    for name, flows in branches.items():
        for flow in flows:
            for key in keys.of(flow, tuple(branches)):
                groups.setdefault(key, {}).setdefault(name, []).append(flow)
    seen = set()
    for group in groups.values():
        chosen = {name: tuple(group[name]) for name in branches if name in group}
        # An aggregate may stand under many keys: what is the same records is one input.
        identity = tuple((name, *map(id, flows)) for name, flows in chosen.items())
        if identity not in seen:
            seen.add(identity)
            yield chosen


def _joined(
    action: Action, keys: _Keys, branches: Mapping[str, Sequence[Flow]]
) -> Iterable[Mapping[str, tuple[Flow, ...]]]:
    """A full outer join, branch by branch: flows meet that agree wherever any two of their branches do."""
    names = tuple(branches)
    chosen: list[dict[str, Flow]] = [{names[0]: flow} for flow in branches[names[0]]]
    for name in names[1:]:
        matches = _matches(action, keys, chosen, name, branches[name])
        met = {id(flow) for flows in matches for flow in flows}
        chosen = [
            *(
                {**one, name: flow} if flow is not None else one
                for one, flows in zip(chosen, matches, strict=True)
                for flow in (flows or (None,))
            ),
            *({name: flow} for flow in branches[name] if id(flow) not in met),
        ]
        if len(chosen) > MAX_MERGED:
            raise MergeRefused(f"'{action.name}' has {len(chosen):,} merged inputs, at most {MAX_MERGED:,}")
    for one in chosen:
        yield {name: (one[name],) for name in names if name in one}


def _matches(
    action: Action, keys: _Keys, chosen: Sequence[Mapping[str, Flow]], name: str, flows: Sequence[Flow]
) -> list[list[Flow]]:
    indexes: dict[tuple[str, ...], dict[tuple[_Key, ...], list[Flow]]] = {}
    asked: dict[tuple[tuple[str, ...], tuple[_Key, ...]], list[Mapping[str, Flow]]] = {}
    matches: list[list[Flow]] = []
    for one in chosen:
        present = tuple(one)
        if present not in indexes:
            index: dict[tuple[_Key, ...], list[Flow]] = {}
            indexes[present] = index
            for flow in flows:
                for key in product(*(keys.of(flow, _pair(other, name)) for other in present)):
                    index.setdefault(key, []).append(flow)
        found: dict[int, Flow] = {}
        for key in product(*(keys.of(one[other], _pair(other, name)) for other in present)):
            here = indexes[present].get(key, [])
            found.update((id(flow), flow) for flow in here)
            if len(here) > 1 and action.on_multiple is None:
                asked.setdefault((present, key), []).append(one)
        matches.append(list(found.values()))
    for (present, key), ones in asked.items():
        if len(ones) > 1:
            raise _fanned_out(action, ones, name, len(indexes[present][key]))
    return matches


def _pair(one: str, other: str) -> tuple[str, ...]:
    return (one, other)


def _fanned_out(action: Action, ones: Sequence[Mapping[str, Flow]], name: str, count: int) -> MergeRefused:
    sizes = {other: len({id(one[other]) for one in ones}) for other in ones[0]}
    fanned = [f"{other} ({size})" for other, size in sizes.items() if size > 1]
    return MergeRefused(
        f"'{action.name}' merges branches that fanned out each: {', '.join(fanned)}, {name} ({count}); "
        "say on_multiple: product or collect"
    )


def _merged(
    action: Action, topology: Topology, names: Sequence[str], chosen: Mapping[str, tuple[Flow, ...]]
) -> Input:
    flows = [flow for name in names for flow in chosen.get(name, ())]
    content: dict[str, Any] = {}
    for name in names:
        if name in chosen:
            _take(content, chosen[name], topology.upstream[name])
        else:
            for namespace in (*sorted(topology.upstream[name]), name):
                content.setdefault(namespace, None)
    origins = tuple(dict.fromkeys(record for flow in flows for record in flow.origins))
    made = tuple(dict.fromkeys(flow.record for flow in flows if flow.record is not None)) or origins
    # A group of several roots that made no record stands for each of them; it meets what is of one.
    contributors = tuple(record for record in made if record.root_target_id == made[0].root_target_id)
    for namespace in contributors[0].content:
        # Of a group that made no record: what its members do not have in common is null.
        content.setdefault(namespace, None)
    state, blocked_by = _state(action, chosen)
    return Input(
        contributors,
        origins,
        Meeting(tuple(_together(chosen[name]) for name in names if name in chosen)),
        content,
        lineage_of(contributors),
        state,
        is_merge=True,
        blocked_by=blocked_by,
    )


def _together(flows: tuple[Flow, ...]) -> Descent:
    return flows[0].descent if len(flows) == 1 else Several(tuple(flow.descent for flow in flows))


def _take(content: dict[str, Any], flows: tuple[Flow, ...], above: frozenset[str]) -> None:
    if len(flows) == 1:
        for namespace, value in flows[0].content.items():
            content.setdefault(namespace, value)
        return
    kept = [flow for flow in flows if flow.state in (FlowState.LIVE, FlowState.FAILED)]
    seen = dict.fromkeys(namespace for flow in kept for namespace in flow.content)
    for namespace in seen:
        values = [flow.content.get(namespace) for flow in kept]
        is_shared = namespace in above and all(value is values[0] for value in values)
        content.setdefault(namespace, values[0] if is_shared else values)


def _state(action: Action, chosen: Mapping[str, tuple[Flow, ...]]) -> tuple[FlowState, str]:
    flows = [flow for branch in chosen.values() for flow in branch]
    if any(all(flow.state is FlowState.FILTERED for flow in branch) for branch in chosen.values()):
        return FlowState.FILTERED, ""
    failed = next((flow for flow in flows if flow.state is FlowState.FAILED), None)
    if failed is not None and action.on_failed_branch is OnFailedBranch.BLOCK:
        return FlowState.FAILED, failed.blocked_by
    if all(flow.state in (FlowState.DROPPED, FlowState.FILTERED) for flow in flows):
        return FlowState.DROPPED, ""
    return FlowState.LIVE, ""
