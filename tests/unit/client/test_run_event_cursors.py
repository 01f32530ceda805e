"""Where a stream of events goes on after it was cut."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from agenttx import RetryPolicy
from agenttx.errors import LimitExceeded, RpcError, Unavailable
from agenttx.run_event_cursors import RunStreamCursor, SubscriptionCursor
from agenttx.v1 import graph_pb2 as pb

POLICY = RetryPolicy(random=lambda: 1.0, clock=lambda: 0.0)


def subscription(**fields: Any) -> SubscriptionCursor:
    asked: dict[str, Any] = dict.fromkeys(("run", "root_run", "thread", "graph", "node", "namespace"), "")
    asked |= {"kinds": (), "modes": (), "from_offset": None, "from_sequence": None}
    return SubscriptionCursor(POLICY, **(asked | fields))


def told(offset: int, sequence: int) -> pb.SubscribeEventsResponse:
    event = pb.GraphEvent(offset=offset, sequence=sequence, kind=pb.GRAPH_EVENT_KIND_CUSTOM, run_id="r")
    return pb.SubscribeEventsResponse(event=event)


def test_one_that_began_now_and_was_cut_before_an_event_came_goes_on_from_then() -> None:
    cursor = subscription(thread="t")
    assert not cursor.open().HasField("from_sequence")
    cursor.opened({"agenttx-from-sequence": "41", "other": b"bytes"})
    assert cursor.open().from_sequence == 41
    cursor.opened({"agenttx-from-sequence": "nonsense"})
    event = cursor.take(told(3, 44))
    assert event is not None
    assert (event.offset, event.sequence) == (3, 44)
    assert cursor.open().from_sequence == 45
    assert cursor.take(told(3, 44)) is None, "it was there before"


def test_a_run_goes_on_by_offset_and_live_notices_move_nothing() -> None:
    cursor = subscription(run="r", from_offset=7)
    cursor.opened({"agenttx-from-offset": "7"})
    assert cursor.open().from_offset == 7
    live = cursor.take(pb.SubscribeEventsResponse(event=pb.GraphEvent(kind=99, run_id="r")))  # type: ignore[arg-type]
    assert live is not None
    assert (live.offset, live.sequence, live.kind, live.payload) == (None, None, "unspecified", {})
    assert cursor.take(told(6, 60)) is None
    assert cursor.take(told(7, 61)) is not None
    assert (cursor.open().from_offset, cursor.open().HasField("from_sequence")) == (8, False)


def test_a_stream_of_a_run_goes_on_with_the_same_request() -> None:
    cursor = RunStreamCursor(pb.StartRunRequest(request_id="q", graph="g"), ["VALUES"], POLICY)
    event = pb.GraphEvent(offset=0, kind=pb.GRAPH_EVENT_KIND_RUN_STARTED, run_id="r")
    assert cursor.take(pb.StreamRunResponse(event=event)) is not None
    again = cursor.open()
    assert (again.start.request_id, again.from_offset, list(again.modes)) == ("q", 1, [pb.EVENT_MODE_VALUES])
    assert cursor.take(pb.StreamRunResponse(event=event)) is None
    assert cursor.outcome is None
    outcome = pb.RunOutcome(run_id="r", status=pb.RUN_STATUS_COMPLETED)
    assert cursor.take(pb.StreamRunResponse(outcome=outcome)) is None
    assert cursor.outcome is not None
    assert cursor.outcome.status == "COMPLETED"


@pytest.mark.parametrize("cursor", [subscription(), RunStreamCursor(pb.StartRunRequest(), (), POLICY)])
def test_who_read_slowly_goes_on_at_once_and_what_is_final_is_final(cursor: Any) -> None:
    cursor.open()
    slow = LimitExceeded("slow", code=grpc.StatusCode.RESOURCE_EXHAUSTED)
    slow.reason = "SLOW_CONSUMER"
    assert cursor.wait_after(slow) == 0.0
    assert cursor.wait_after(Unavailable("away", code=grpc.StatusCode.UNAVAILABLE)) > 0
    assert cursor.wait_after(RpcError("no", code=grpc.StatusCode.OUT_OF_RANGE)) is None
