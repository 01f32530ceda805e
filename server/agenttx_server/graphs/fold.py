"""Folding the results of a superstep into the state: in task order, all or nothing, on a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import MISSING, JsonValue, Missing, ValueRefused, canonical
from agenttx_server.graphs.channel_types import has_type, type_name
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.errors import FoldError
from agenttx_server.graphs.limits import MAX_STATE_BYTES
from agenttx_server.graphs.node_results import OVERWRITE, Update
from agenttx_server.graphs.reducers.reduction import Mismatch, Reduced, Reducer, ReducerFailed

__all__ = [
    "ChannelChange",
    "ChannelOrigin",
    "Folded",
    "Origin",
    "State",
    "TaskWrites",
    "fold",
    "folded_behind",
    "tracked",
]

State: TypeAlias = Mapping[str, JsonValue]
"""Channel → value. A channel without a value is not in it. Never changed in place."""

Origin: TypeAlias = int | None
"""The step whose write is there; None for input and edits, or where it isn't known."""


@dataclass(frozen=True, slots=True)
class TaskWrites:
    """What one task writes.

    Attributes:
        node: its node, for errors; "" for input.
        updates: in order.
        seed: names the write, for ids that are made: the same over retries and in a second run.
        origin: the step that wrote.
        task_id: the task.
    """

    node: str
    updates: tuple[Update, ...]
    seed: str = ""
    origin: Origin = None
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class ChannelOrigin:
    """Where what a channel holds comes from: its last writer, and for arrays that of each element."""

    last: Origin
    elements: tuple[Origin, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChannelChange:
    """What a fold did to a channel.

    ``appended`` is how many elements stand behind those that were there, where nothing else changed:
    such a change can be kept as a delta. None where the value is another, or is gone.
    """

    channel: str
    value: JsonValue | Missing
    appended: int | None = None


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded superstep.

    Attributes:
        state: the new state.
        origins: where each channel's value comes from.
        changes: what changed, by channel name.
        effective: the updates that counted, in order, with ids filled in: folded over the old state
            they give the new one. A shared subgraph hands them to the graph that embeds it.
        size: bytes of the new state as canonical JSON.
    """

    state: dict[str, JsonValue]
    origins: Mapping[str, ChannelOrigin]
    changes: tuple[ChannelChange, ...]
    effective: tuple[Update, ...]
    size: int


@dataclass(slots=True)
class _Write:
    task: TaskWrites
    value: JsonValue
    place: int
    index: int

    @property
    def overwrites(self) -> bool:
        return isinstance(self.value, dict) and self.value.keys() == {OVERWRITE}


def fold(
    graph: CompiledGraph,
    state: State,
    writes: Sequence[TaskWrites],
    origins: Mapping[str, ChannelOrigin] | None = None,
    *,
    keep_ephemeral: bool = False,
) -> Folded:
    """Fold a superstep's writes, in the order given, which is that of its tasks.

    Args:
        graph: whose channels they are.
        state: the state before; it is not changed.
        writes: one entry a task.
        origins: where the values of ``state`` come from.
        keep_ephemeral: True for a provisional view of a superstep that is not over: ephemeral channels
            that nothing wrote keep what they hold.

    Raises:
        FoldError: UNKNOWN_CHANNEL, TYPE_MISMATCH, CONCURRENT_UPDATE (naming the writers), REDUCER_FAILED,
            STATE_TOO_LARGE. The first in order of channel names; nothing was changed.
    """
    by_channel = _writes_by_channel(graph, writes)
    new_state = dict(state)
    new_origins = dict(origins or {})
    changes: list[ChannelChange] = []
    effective: list[tuple[int, str, JsonValue]] = []
    for channel in sorted(by_channel.keys() | (set() if keep_ephemeral else _ephemeral_in(graph, state))):
        channel_writes = _deciding(graph, channel, by_channel.get(channel, []))
        if not channel_writes:
            del new_state[channel]
            new_origins.pop(channel, None)
            changes.append(ChannelChange(channel, MISSING))
            continue
        folding = _ChannelFolding(graph, channel, state.get(channel, MISSING), new_origins.get(channel))
        for write in channel_writes:
            effective.append((write.place, channel, folding.take(write)))
        new_state[channel] = folding.checked_value()
        new_origins[channel] = folding.origin()
        changes.append(folding.change())
    return Folded(
        new_state, new_origins, tuple(changes), _as_updates(effective), _checked_size(graph, new_state)
    )


def folded_behind(first: Folded, second: Folded) -> Folded:
    """Two folds, the second over the state of the first, as one."""
    changes = {change.channel: change for change in first.changes}
    for change in second.changes:
        before = changes.get(change.channel)
        if before is not None and change.appended is not None:
            both = None if before.appended is None else before.appended + change.appended
            change = replace(change, appended=both)
        changes[change.channel] = change
    ordered = tuple(changes[name] for name in sorted(changes))
    return replace(second, changes=ordered, effective=first.effective + second.effective)


def tracked(graph: CompiledGraph, state: State) -> dict[str, JsonValue]:
    """The part of a state that checkpoints keep: without untracked channels."""
    return {name: value for name, value in state.items() if not graph.reducers[name].untracked}


def _writes_by_channel(graph: CompiledGraph, writes: Sequence[TaskWrites]) -> dict[str, list[_Write]]:
    by_channel: dict[str, list[_Write]] = {}
    place = 0
    for task in writes:
        for index, update in enumerate(task.updates):
            for channel, value in update.items():
                if channel not in graph.channels:
                    raise FoldError(
                        "UNKNOWN_CHANNEL",
                        f"{_writer(task)} writes channel '{channel[:128]}', which the graph doesn't have",
                        {"channel": channel[:128], "node": task.node},
                    )
                by_channel.setdefault(channel, []).append(_Write(task, value, place, index))
            place += 1
    return by_channel


def _ephemeral_in(graph: CompiledGraph, state: State) -> set[str]:
    return {name for name in state if graph.reducers[name].ephemeral}


def _deciding(graph: CompiledGraph, channel: str, writes: list[_Write]) -> list[_Write]:
    """The writes that count: an overwrite marker makes its siblings' void."""
    marking = {id(write.task): write.task for write in writes if write.overwrites}
    writing = {id(write.task): write.task for write in writes}
    rivals = marking if marking else writing if graph.reducers[channel].one_writer else {}
    if len(rivals) > 1:
        names = ", ".join(task.node or "input" for task in rivals.values())
        raise FoldError(
            "CONCURRENT_UPDATE",
            f"channel '{channel}' was written by {names} in one superstep; it takes one writer",
            {
                "channel": channel,
                "nodes": ",".join(task.node for task in rivals.values()),
                "task_ids": ",".join(task.task_id for task in rivals.values()),
            },
        )
    if not marking:
        return writes
    own = [write for write in writes if id(write.task) in marking]
    last_marker = max(index for index, write in enumerate(own) if write.overwrites)
    return own[last_marker:]


class _ChannelFolding:
    """One channel's way through the writes of a superstep."""

    def __init__(
        self, graph: CompiledGraph, channel: str, value: JsonValue | Missing, origin: ChannelOrigin | None
    ) -> None:
        self._channel = graph.channels[channel]
        self._reducer: Reducer = graph.reducers[channel]
        self._context = graph.write_contexts[channel]
        self._value = value
        self._elements: tuple[Origin, ...] | None = origin.elements if origin else None
        self._last: Origin = origin.last if origin else None
        self._node = ""
        self._old_length = len(value) if isinstance(value, list) else 0
        self._only_appended = True

    def take(self, write: _Write) -> JsonValue:
        """Apply one write; return it as it is to be written down."""
        task = write.task
        self._node = task.node
        current, update = self._value, write.value
        if write.overwrites and isinstance(update, dict):
            current, update = MISSING, update[OVERWRITE]
        seed = f"{task.seed}\0{write.index}\0{self._channel.name}"
        try:
            reduced = self._reducer.reduce(current, update, replace(self._context, seed=seed))
        except Mismatch as error:
            raise self._mismatch(error.expected, error.received) from None
        except ReducerFailed as error:
            raise FoldError(
                "REDUCER_FAILED",
                f"reducer {self._reducer.name} of channel '{self._channel.name}' failed on what "
                f"{_writer(task)} wrote: {error}",
                {"channel": self._channel.name, "reducer": self._reducer.name, "node": task.node},
            ) from error
        self._note(reduced, current, task.origin)
        return {OVERWRITE: reduced.update} if write.overwrites else reduced.update

    def _note(self, reduced: Reduced, current: JsonValue | Missing, origin: Origin) -> None:
        self._last = origin
        if reduced.appended is not None:
            self._elements = (*self._origins_of(current), *(origin,) * reduced.appended)
            self._only_appended &= current is not MISSING or self._value is MISSING
        elif reduced.kept is None:
            self._elements = None
            self._only_appended = False
        else:
            old = self._origins_of(current)
            old_length = len(old)
            self._elements = tuple(origin if index is None else old[index] for index in reduced.kept)
            appends = reduced.kept[:old_length] == tuple(range(old_length)) and not any(
                index is not None for index in reduced.kept[old_length:]
            )
            self._only_appended &= appends and (current is not MISSING or self._value is MISSING)
        self._value = reduced.value

    def _origins_of(self, current: JsonValue | Missing) -> tuple[Origin, ...]:
        length = len(current) if isinstance(current, list) else 0
        if self._elements is not None and len(self._elements) == length:
            return self._elements
        return (None,) * length

    def checked_value(self) -> JsonValue:
        value = self._value
        assert value is not MISSING
        if not has_type(value, self._channel.type):
            raise self._mismatch(self._channel.type, type_name(value))
        return value

    def origin(self) -> ChannelOrigin:
        return ChannelOrigin(self._last, self._elements)

    def change(self) -> ChannelChange:
        appended = None
        if self._only_appended and isinstance(self._value, list):
            appended = len(self._value) - self._old_length
        return ChannelChange(self._channel.name, self._value, appended)

    def _mismatch(self, expected: str, received: str) -> FoldError:
        who = f"'{self._node}'" if self._node else "the input"
        return FoldError(
            "TYPE_MISMATCH",
            f"channel '{self._channel.name}' takes {expected}; {who} wrote {received}",
            {
                "channel": self._channel.name,
                "expected": expected,
                "received": received,
                "node": self._node,
            },
        )


def _as_updates(effective: list[tuple[int, str, JsonValue]]) -> tuple[Update, ...]:
    updates: dict[int, Update] = {}
    for place, channel, value in sorted(effective, key=lambda item: (item[0], item[1])):
        updates.setdefault(place, {})[channel] = value
    return tuple(updates.values())


def _checked_size(graph: CompiledGraph, state: State) -> int:
    try:
        size = len(canonical(dict(state)).encode())
    except ValueRefused as error:
        raise FoldError(
            "TYPE_MISMATCH", f"the state is no JSON: {error}", {"channel": error.key or ""}
        ) from None
    if size > MAX_STATE_BYTES:
        raise FoldError(
            "STATE_TOO_LARGE",
            f"the state would have {size} bytes; it may have {MAX_STATE_BYTES}",
            {"limit_bytes": str(MAX_STATE_BYTES), "actual_bytes": str(size)},
        )
    return size


def _writer(task: TaskWrites) -> str:
    return f"'{task.node}'" if task.node else "the input"
