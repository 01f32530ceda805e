"""How the values of channels are kept, so that storage grows with what changes.

A checkpoint writes the channels that its superstep changed: the value whole, or, where elements were only
appended, those elements. A list is written whole again once the elements appended since weigh as much as it
did, so a list of n elements costs O(n) in all, and is read by a chain no longer than itself. Every other
channel is found where an older checkpoint wrote it. Which steps wrote what goes the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import MISSING, JsonValue, canonical, load
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.fold import ChannelChange, ChannelOrigin, Folded
from agenttx_server.graphs.runs.records import StoredPlace, ValueRecord

__all__ = ["Places", "ValuePlace", "places_of", "read_values", "snapshot", "stored_places", "write_values"]

_SMALLEST_SNAPSHOT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where a checkpoint finds a channel's value.

    Attributes:
        number: the checkpoint that wrote it last.
        base: the checkpoint that wrote it whole; the deltas since lead from there to ``number``.
        base_bytes: size of that whole value.
        delta_bytes: size of all deltas since.
    """

    number: int
    base: int
    base_bytes: int
    delta_bytes: int = 0


Places = Mapping[str, ValuePlace]
"""Channel → where its value is. A channel without a value is not in it."""


def stored_places(places: Places) -> tuple[StoredPlace, ...]:
    """Places as a checkpoint keeps them."""
    return tuple(
        (channel, place.number, place.base, place.base_bytes, place.delta_bytes)
        for channel, place in sorted(places.items())
    )


def places_of(stored: Iterable[StoredPlace]) -> dict[str, ValuePlace]:
    """Read :func:`stored_places`."""
    return {channel: ValuePlace(*place) for channel, *place in stored}


def write_values(
    graph: CompiledGraph, thread_id: str, number: int, folded: Folded, places: Places
) -> tuple[list[ValueRecord], dict[str, ValuePlace]]:
    """What checkpoint ``number`` writes of a folded superstep, and where all values are then.

    Args:
        graph: whose channels they are; untracked ones are not written.
        thread_id: the thread.
        number: the checkpoint's.
        folded: the superstep.
        places: where the values of the checkpoint before are.
    """
    records: list[ValueRecord] = []
    new_places = dict(places)
    for change in folded.changes:
        channel = change.channel
        if graph.reducers[channel].untracked:
            continue
        if change.value is MISSING:
            new_places.pop(channel, None)
            continue
        origin = folded.origins.get(channel, ChannelOrigin(None))
        delta = _delta(thread_id, number, change, origin, places.get(channel))
        record, place = delta or _whole(thread_id, number, change, origin)
        records.append(record)
        new_places[channel] = place
    return records, new_places


def read_values(
    places: Places, records: Iterable[ValueRecord], since: int = 0
) -> tuple[dict[str, JsonValue], dict[str, ChannelOrigin]]:
    """Put a state and its origins together.

    Args:
        places: where the values are.
        records: all that the places lead to; there may be more.
        since: what was written before this checkpoint has no origin: its steps are of another transaction.
    """
    found = {(record.channel, record.number): record for record in records}
    state: dict[str, JsonValue] = {}
    origins: dict[str, ChannelOrigin] = {}
    for channel, place in places.items():
        chain = [found[channel, place.number]]
        while (previous := chain[-1].previous) is not None:
            chain.append(found[channel, previous])
        state[channel], origins[channel] = _joined(chain[::-1], since)
    return state, origins


def _delta(
    thread_id: str, number: int, change: ChannelChange, origin: ChannelOrigin, before: ValuePlace | None
) -> tuple[ValueRecord, ValuePlace] | None:
    if change.appended is None or before is None or not isinstance(change.value, list):
        return None
    first = len(change.value) - change.appended
    text = canonical(change.value[first:])
    delta_bytes = before.delta_bytes + len(text)
    if delta_bytes > max(before.base_bytes, _SMALLEST_SNAPSHOT_BYTES):
        return None
    elements = None if origin.elements is None else origin.elements[first:]
    record = ValueRecord(
        thread_id, change.channel, number, before.number, text, _origin_text(origin, elements)
    )
    return record, ValuePlace(number, before.base, before.base_bytes, delta_bytes)


def _whole(
    thread_id: str, number: int, change: ChannelChange, origin: ChannelOrigin
) -> tuple[ValueRecord, ValuePlace]:
    text = canonical(change.value)
    record = ValueRecord(thread_id, change.channel, number, None, text, _origin_text(origin, origin.elements))
    return record, ValuePlace(number, number, len(text))


def _origin_text(origin: ChannelOrigin, elements: Sequence[int | None] | None) -> str:
    if elements is None:
        return canonical([origin.last])
    # Most often one step wrote them all.
    if all(element == origin.last for element in elements):
        return canonical([origin.last, len(elements)])
    return canonical([origin.last, list(elements)])


def snapshot(records: Mapping[tuple[str, int], ValueRecord], channel: str, number: int) -> ValueRecord:
    """What checkpoint ``number`` wrote of a channel as the whole value; who leads to it finds the same."""
    chain = [records[channel, number]]
    while (previous := chain[-1].previous) is not None:
        chain.append(records[channel, previous])
    value, origin = _joined(chain[::-1], 0)
    text = _origin_text(origin, origin.elements)
    return ValueRecord(chain[0].thread_id, channel, number, None, canonical(value), text)


def _joined(chain: Sequence[ValueRecord], since: int) -> tuple[JsonValue, ChannelOrigin]:
    if len(chain) == 1:
        return load(chain[0].value), _origin_of(chain, since)
    elements: list[Any] = []
    for record in chain:
        elements += load(record.value)  # type: ignore[arg-type]  # only lists have deltas
    return elements, _origin_of(chain, since)


def _origin_of(chain: Sequence[ValueRecord], since: int) -> ChannelOrigin:
    elements: list[int | None] | None = []
    last = None
    for record in chain:
        kept: Any = load(record.origins)
        is_ours = record.number >= since
        last = kept[0] if is_ours else None
        if len(kept) == 1:
            elements = None
        elif elements is not None:
            made: list[int | None] = [kept[0]] * kept[1] if isinstance(kept[1], int) else kept[1]
            elements += made if is_ours else [None] * len(made)
    return ChannelOrigin(last, None if elements is None else tuple(elements))
