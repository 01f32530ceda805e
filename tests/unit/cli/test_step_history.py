"""The history of steps."""

from datetime import timedelta

from tests.support.sample_records import NOON, attempt, backtrack, jump

from agenttx.records import AttemptState, Dependency, DependencyKind, Strategy
from agenttx_server.cli.rendering.decisions import decision_lines
from agenttx_server.cli.rendering.steps import in_order_of_time, step_details, step_history

HINT = "Hint: customer_id cus_120 is not present in table customers."


def failure(step_id: int = 10, **fields):
    return attempt(
        step_id, state=AttemptState.FAILED, rewound=True, hint=HINT, decision=jump(step_id), **fields
    )


def test_a_history_is_in_order_of_time_and_not_of_steps():
    first = attempt(3, started_at=NOON)
    again = attempt(3, attempt=2, started_at=NOON + timedelta(seconds=9))
    fourth = attempt(4, started_at=NOON + timedelta(seconds=1))
    never_started = attempt(5, started_at=None)
    assert in_order_of_time([first, again, fourth, never_started]) == [first, fourth, again, never_started]


def test_attempts_that_began_together_are_in_order_of_steps():
    group = [attempt(step_id, started_at=NOON) for step_id in (1, 2, 3)]
    assert in_order_of_time(reversed(group)) == group


def test_a_failure_is_followed_by_its_hint_the_decision_and_the_path(shown):
    lines = shown(step_history([attempt(9, rewound=True), failure()], NOON)).splitlines()
    assert lines[2].split() == ["STEP", "TRY", "STARTED", "TOOL", "STATE", "TOOK", "FROM"]
    assert lines[3].split() == ["9", "1", "12:00:09.000", "kv.put", "REWOUND", "12", "ms"]
    assert lines[4].split() == ["10", "1", "12:00:10.000", "kv.put", "FAILED", "12", "ms"]
    assert [line.strip() for line in lines[5:]] == [
        HINT,
        "↩ DEPENDENCY_JUMP to step 3: 8 steps to run again, 72 of 80 left",
        "root cause: 10.customer_id ← 6.customer_id ← 3.customer_id",
    ]


def test_what_was_passed_over_is_said_with_its_reason():
    assert list(decision_lines(backtrack())) == [
        "LOCAL_BACKTRACK to step 3: 2 steps to run again, 72 of 80 left",
        "not DEPENDENCY_JUMP: no earlier step gave 'key'",
    ]


def test_ends_and_resets_have_no_target():
    assert "the transaction ended" in next(decision_lines(jump(strategy=Strategy.ABORT, path=())))
    assert "from step 1" in next(decision_lines(jump(strategy=Strategy.GLOBAL_RESET, path=())))


def test_dependencies_stand_beside_their_step_and_below_where_there_is_no_room(shown):
    used = attempt(
        2, dependencies=tuple(Dependency(1, f"column_{n}", "x", DependencyKind.EXPLICIT) for n in range(4))
    )
    assert "1.column_0 → x  1.column_1 → x  1.column_2 → x  1.column_3 → x" in shown(
        step_history([used], NOON)
    )
    narrow = shown(step_history([used], NOON), width=80).splitlines()
    assert [line.strip() for line in narrow[4:]] == ["1.column_1 → x", "1.column_2 → x", "1.column_3 → x"]
    assert all(len(line) <= 80 for line in narrow)


def test_a_hint_uses_the_whole_width_of_a_narrow_terminal(shown):
    lines = shown(step_history([failure()], NOON), width=80).splitlines()
    assert any(HINT in line for line in lines)


def test_details_have_arguments_output_and_the_error_as_the_tool_gave_it(shown):
    failed = failure(
        arguments={"id": 1},
        arguments_json='{"id":1}',
        raw_error="Traceback:\n  boom\x1b[0m",
        category="foreign_key_violation",
    )
    text = shown(step_details([attempt(1, output=[1, "ä"]), failed]))
    assert '[1, "ä"]' in text
    assert '{"id": 1}' in text
    assert "boom\\x1b[0m" in text
    assert "foreign_key_violation" in text


def test_arguments_that_are_no_json_are_shown_as_they_were_sent(shown):
    text = shown(step_details([attempt(1, arguments=None, arguments_json='{"a":')]))
    assert '{"a":' in text


def test_a_long_output_is_cut_and_says_where_the_rest_is(shown):
    text = shown(step_details([attempt(1, output="x" * 5000)]))
    assert "(5002 characters; --json has all)" in text
