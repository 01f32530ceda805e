"""What is refused of requests about runs and threads before anything is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion import run_requests, thread_changes, threads
from agenttx_server.engine.errors import InvalidRequest
from agenttx_server.graphs.limits import MAX_STATE_BYTES


def _start(**fields: Any) -> Any:
    return run_requests.start_request(pb.StartRunRequest(graph="g", **fields), "p")


def _fields(ask: Callable[[], Any]) -> list[str]:
    with pytest.raises(InvalidRequest) as refused:
        ask()
    return [item.field for item in refused.value.violations]


def test_a_number_that_is_no_value_of_its_enumeration_is_refused_by_its_field() -> None:
    for field in ("input_policy", "pending_interrupts", "on_busy"):
        for number in (3, 99, -1):
            assert _fields(lambda f=field, n=number: _start(**{f: n})) == [field]  # type: ignore[misc]
        for number in (0, 1, 2):
            _start(**{field: number})
    for field in ("durability", "commit"):
        options = pb.RunOptions(**{field: 99})
        assert _fields(lambda o=options: _start(options=o)) == [f"options.{field}"]  # type: ignore[misc]
        for read, message in (
            (
                run_requests.resume_request,
                pb.ResumeRunRequest(thread_id="t", value_json="1", options=options),
            ),
            (run_requests.retry_request, pb.RetryRunRequest(thread_id="t", options=options)),
        ):
            assert _fields(lambda r=read, m=message: r(m, "p")) == [f"options.{field}"]  # type: ignore[misc]
    with pytest.raises(InvalidRequest):
        threads.threads_request(pb.ListThreadsRequest(statuses=[99]))


@pytest.mark.parametrize("character", ["\n", "\x1b", "\x7f", "\x85"])
def test_an_id_of_a_callers_choosing_has_no_control_character(character: str) -> None:
    name = f"a{character}b"
    assert _fields(lambda: _start(thread_id=name, request_id=name)) == ["request_id", "thread_id"]
    for ask, fields in (
        (
            lambda: thread_changes.fork_request(
                pb.ForkThreadRequest(thread_id="t", new_thread_id=name, request_id=name), "p"
            ),
            ["request_id", "new_thread_id"],
        ),
        (
            lambda: thread_changes.copy_request(
                pb.CopyThreadRequest(thread_id=name, new_thread_id=name), "p"
            ),
            ["thread_id", "new_thread_id"],
        ),
        (
            lambda: thread_changes.update_request(pb.UpdateStateRequest(thread_id=name), "p"),
            ["thread_id", "supersteps"],
        ),
        (lambda: thread_changes.delete_request(pb.DeleteThreadRequest(thread_id=name), "p"), ["thread_id"]),
        (
            lambda: run_requests.resume_request(pb.ResumeRunRequest(thread_id=name, value_json="1"), "p"),
            ["thread_id"],
        ),
    ):
        assert _fields(ask) == fields
    assert _start(thread_id="déjà 見 🙂/#").thread_id == "déjà 見 🙂/#"


def test_an_update_is_no_larger_than_a_state_may_be() -> None:
    text = '{"a":"' + "é" * (MAX_STATE_BYTES // 2) + '"}'
    assert _fields(lambda: _start(input_json=text)) == ["input_json"]
    _start(input_json='{"a":"' + "x" * (MAX_STATE_BYTES - 8) + '"}')
