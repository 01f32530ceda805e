"""Following runs over as many streams as it takes: every event once, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any

from agenttx import run_conversion
from agenttx.errors import RpcError
from agenttx.message_conversion import number_of
from agenttx.reconnection import Reconnection
from agenttx.retry_policy import RetryPolicy
from agenttx.run_events import EventMode, GraphEvent, GraphEventKind
from agenttx.run_records import RunOutcome
from agenttx.sendable_text import sends_text
from agenttx.v1 import graph_pb2 as pb
from agenttx.values import count, decode_json, member

__all__ = ["RunStreamCursor", "SubscriptionCursor"]

_BEGINS_AT = "agenttx-from-sequence"


class RunStreamCursor:
    """How far a stream of a run that was started has come; ``outcome`` is there once it has ended."""

    def __init__(
        self,
        start: pb.StartRunRequest,
        modes: Iterable[EventMode | str],
        policy: RetryPolicy,
        *,
        live: bool = False,
    ) -> None:
        self._request = pb.StreamRunRequest(start=start, modes=_modes(modes), live=live)
        self._reconnection = Reconnection(policy)
        self.run_id = ""
        self.outcome: RunOutcome | None = None

    def open(self) -> pb.StreamRunRequest:
        """Return the request for what is next, for a stream that is opened now: its request_id makes it the same run."""
        self._reconnection.opening()
        return self._request

    def take(self, message: pb.StreamRunResponse) -> GraphEvent | None:
        """Return the event; None for the outcome, and where the event was there before."""
        self._reconnection.came()
        if message.WhichOneof("message") == "outcome":
            self.outcome = run_conversion.outcome(message.outcome)
            self.run_id = self.outcome.run_id
            return None
        event = _event(message.event)
        self.run_id = event.run_id
        if event.offset is not None:
            if event.offset < self._request.from_offset:
                return None
            self._request.from_offset = event.offset + 1
        return event

    def wait_after(self, error: RpcError) -> float | None:
        """Return the seconds to wait before going on, or None where the error is final."""
        return self._reconnection.wait_after(error)


class SubscriptionCursor:
    """How far a subscription has come."""

    @sends_text
    def __init__(
        self,
        policy: RetryPolicy,
        *,
        run: str,
        root_run: str,
        thread: str,
        graph: str,
        node: str,
        namespace: str,
        kinds: Iterable[GraphEventKind | str],
        modes: Iterable[EventMode | str],
        from_offset: int | None,
        from_sequence: int | None,
        live: bool = False,
    ) -> None:
        self._request = pb.SubscribeEventsRequest(
            run_id=run,
            root_run_id=root_run,
            thread_id=thread,
            graph=graph,
            node=node,
            namespace=namespace,
            kinds=_kinds(kinds),
            modes=_modes(modes),
            live=live,
        )
        if from_offset is not None:
            self._request.from_offset = count("from_offset", from_offset, bits=64)
        if from_sequence is not None:
            self._request.from_sequence = count("from_sequence", from_sequence, bits=64)
        self._reconnection = Reconnection(policy)

    def open(self) -> pb.SubscribeEventsRequest:
        """Return the request for what is next, for a stream that is opened now."""
        self._reconnection.opening()
        return self._request

    def opened(self, metadata: Mapping[str, Any]) -> None:
        """The stream stands: where one began that was to begin now, the next goes on."""
        begins_at = str(metadata.get(_BEGINS_AT, ""))
        if begins_at.isdecimal() and not self._request.run_id:
            self._request.from_sequence = int(begins_at)

    def take(self, message: pb.SubscribeEventsResponse) -> GraphEvent | None:
        """Return the event, or None where it was there before."""
        event = _event(message.event)
        if event.offset is not None and event.sequence is not None:
            request = self._request
            if request.run_id:
                if event.offset < request.from_offset:
                    return None
                request.from_offset = event.offset + 1
            else:
                if event.sequence < request.from_sequence:
                    return None
                request.from_sequence = event.sequence + 1
        self._reconnection.came()
        return event

    def wait_after(self, error: RpcError) -> float | None:
        """Return the seconds to wait before going on, or None where the error is final."""
        return self._reconnection.wait_after(error)


def _event(message: pb.GraphEvent) -> GraphEvent:
    is_kept = message.HasField("offset")
    return GraphEvent(
        message.offset if is_kept else None,
        message.sequence if is_kept else None,
        _KINDS.get(message.kind, GraphEventKind.UNSPECIFIED),
        message.run_id,
        message.root_run_id,
        message.thread_id,
        message.graph,
        message.namespace,
        message.superstep,
        message.node,
        message.task_id,
        decode_json(message.payload_json) or {},
        message.occurred_at.ToDatetime(tzinfo=UTC) if message.HasField("occurred_at") else None,
    )


_KINDS: dict[Any, GraphEventKind] = {
    number: GraphEventKind[name]
    for text, number in pb.GraphEventKind.items()
    if (name := text.removeprefix("GRAPH_EVENT_KIND_")) in GraphEventKind.__members__
}


def _kinds(kinds: Iterable[GraphEventKind | str]) -> list[Any]:
    asked = [kinds] if isinstance(kinds, str) else kinds
    wanted = [member("kinds", GraphEventKind, kind) for kind in asked]
    return [pb.GraphEventKind.Value(f"GRAPH_EVENT_KIND_{kind.name}") for kind in wanted]


def _modes(modes: Iterable[EventMode | str]) -> list[Any]:
    asked = [modes] if isinstance(modes, str) else modes
    return [number_of(pb.EventMode, "EVENT_MODE_", member("modes", EventMode, mode)) for mode in asked]
