"""Lines of events of runs."""

from typing import Any

from tests.support.sample_records import NOON

from agenttx import GraphEvent, GraphEventKind
from agenttx_server.cli.rendering.run_events import run_event_line


def event(kind: GraphEventKind, node: str = "", offset: int | None = 8, **payload: Any) -> GraphEvent:
    sequence = None if offset is None else 900
    return GraphEvent(
        offset, sequence, kind, "run-1", "run-1", "t-1", "support", "", 3, node, "task", payload, NOON
    )


def test_a_node_is_told_with_its_superstep_and_what_leads(shown):
    line = shown(run_event_line(event(GraphEventKind.NODE_FAILED, "pay", hint="Hint: no.", attempt=2)))
    assert line.split() == "12:00:00.000 8 node.failed 3 pay Hint: no. attempt=2".split()


def test_of_many_runs_the_thread_is_named_and_the_sequence(shown):
    line = shown(run_event_line(event(GraphEventKind.RUN_COMPLETED, state={"n": 1}), of_one_run=False))
    assert line.split() == ["12:00:00.000", "900", "t-1", "run.completed", "3", 'state={"n":', "1}"]


def test_what_is_not_kept_says_that_it_is_live_and_an_error_its_reason(shown):
    assert shown(run_event_line(event(GraphEventKind.CUSTOM, "a", None))).split()[1] == "live"
    failed = event(GraphEventKind.RUN_FAILED, error={"reason": "NODE_FAILED", "message": "it broke"})
    assert shown(run_event_line(failed)).endswith("NODE_FAILED  it broke")


def test_nothing_in_an_event_is_obeyed_by_a_terminal(shown):
    hostile = event(GraphEventKind.CUSTOM, "a\x1b[2J", name="\x1b]0;x\x07", data="[red]")
    line = shown(run_event_line(hostile))
    assert "\x1b" not in line
    assert "[red]" in line
