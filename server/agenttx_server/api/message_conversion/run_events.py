"""What is asked about events of runs, and events as messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion.request_reader import RequestReader
from agenttx_server.api.message_conversion.run_requests import (
    LONGEST_ID_BYTES,
    LONGEST_NAME_BYTES,
    LONGEST_THREAD_BYTES,
    start_request,
)
from agenttx_server.api.message_conversion.values import timestamp_from_microseconds
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.graphs.runs.event_choice import EventChoice, EventMode
from agenttx_server.graphs.runs.live_notices import NO_OFFSET
from agenttx_server.graphs.runs.records import EventRecord
from agenttx_server.graphs.runs.requests import StartRequest

__all__ = ["StreamAsked", "SubscriptionAsked", "event_message", "stream_request", "subscribe_request"]

# The root namespace is "", so a longer one is of 25 graphs in one another at most.
LONGEST_NAMESPACE_BYTES = 4096
MOST_KINDS = 64
_PREFIX = "GRAPH_EVENT_KIND_"
# "node.retry_scheduled" is GRAPH_EVENT_KIND_NODE_RETRY_SCHEDULED; a name's first _ is its kind's point.
_KIND_BY_NUMBER: dict[Any, str] = {
    number: name.removeprefix(_PREFIX).lower().replace("_", ".", 1)
    for name, number in pb.GraphEventKind.items()
    if number
}
_NUMBER_BY_KIND = {kind: number for number, kind in _KIND_BY_NUMBER.items()}


@dataclass(frozen=True, slots=True)
class SubscriptionAsked:
    """SubscribeEvents; without ``run_id`` by sequence."""

    choice: EventChoice
    run_id: str
    from_offset: int
    from_sequence: int | None
    live: bool


@dataclass(frozen=True, slots=True)
class StreamAsked:
    """StreamRun."""

    start: StartRequest
    choice: EventChoice
    from_offset: int
    live: bool


def subscribe_request(message: pb.SubscribeEventsRequest) -> SubscriptionAsked:
    """Return what SubscribeEvents asks."""
    reader = RequestReader()
    for field, longest in (
        ("run_id", LONGEST_ID_BYTES),
        ("root_run_id", LONGEST_ID_BYTES),
        ("thread_id", LONGEST_THREAD_BYTES),
        ("graph", LONGEST_NAME_BYTES),
        ("node", LONGEST_NAME_BYTES),
        ("namespace", LONGEST_NAMESPACE_BYTES),
    ):
        reader.name(field, getattr(message, field), longest)
    if message.HasField("from_offset") and not message.run_id:
        reader.refuse("from_offset", "counts the events of one run; name the run, or set from_sequence")
    if message.HasField("from_sequence") and message.run_id:
        reader.refuse("from_sequence", "is set beside run_id; a run's events are counted by from_offset")
    choice = EventChoice(
        _kinds(message.kinds, reader),
        _modes(message.modes, reader),
        message.root_run_id,
        message.thread_id,
        message.graph,
        message.node,
        message.namespace,
    )
    reader.check()
    from_sequence = message.from_sequence if message.HasField("from_sequence") else None
    return SubscriptionAsked(choice, message.run_id, message.from_offset, from_sequence, message.live)


def stream_request(message: pb.StreamRunRequest, principal: str) -> StreamAsked:
    """Return what StreamRun asks."""
    reader = RequestReader()
    if message.from_offset and not message.start.request_id:
        reader.refuse("from_offset", "goes on with a stream of the same request; set start.request_id")
    modes = _modes(message.modes, reader) or frozenset({EventMode.UPDATES})
    reader.check()
    start = start_request(message.start, principal)
    return StreamAsked(start, EventChoice(modes=modes), message.from_offset, message.live)


def event_message(event: EventRecord, payload: str, largest_bytes: int) -> pb.GraphEvent:
    """Tell an event; one that no message has room for without its keys."""
    message = pb.GraphEvent(
        kind=_NUMBER_BY_KIND.get(event.kind, pb.GRAPH_EVENT_KIND_UNSPECIFIED),
        run_id=event.run_id,
        root_run_id=event.root_run_id,
        thread_id=event.thread_id,
        graph=event.graph,
        namespace=event.namespace,
        superstep=event.superstep,
        node=event.node,
        task_id=event.task_id,
        payload_json=payload,
        occurred_at=timestamp_from_microseconds(MicrosecondsUtc(event.occurred_at)),
        offset=None if event.offset == NO_OFFSET else event.offset,
        sequence=None if event.offset == NO_OFFSET else event.sequence,
    )
    if message.ByteSize() > largest_bytes:
        message.payload_json = canonical({"omitted_bytes": len(payload.encode())})
    return message


def _kinds(numbers: Iterable[int], reader: RequestReader) -> frozenset[str]:
    kinds = set()
    for place, number in enumerate(numbers):
        if place == MOST_KINDS:
            reader.refuse("kinds", f"has more than {MOST_KINDS} entries")
            break
        if number not in _KIND_BY_NUMBER:
            reader.refuse(f"kinds[{place}]", f"is {number}, which is no kind of event")
        else:
            kinds.add(_KIND_BY_NUMBER[number])
    return frozenset(kinds)


def _modes(numbers: Iterable[int], reader: RequestReader) -> frozenset[EventMode]:
    modes = set()
    for place, number in enumerate(numbers):
        if place == MOST_KINDS:
            reader.refuse("modes", f"has more than {MOST_KINDS} entries")
            break
        if not number:
            reader.refuse(f"modes[{place}]", "is unspecified")
        elif (mode := reader.enumeration(f"modes[{place}]", EventMode, number)) is not None:
            modes.add(mode)
    return frozenset(modes)
