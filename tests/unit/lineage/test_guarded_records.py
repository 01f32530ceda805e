"""Guards: skip, filter, warn, and what they mean for those below."""

from __future__ import annotations

import pytest
from tests.support.pipeline_flows import run, violations_of

BRANCHES = """
actions:
  - {{name: classify}}
  - {{name: fast_path, dependencies: [classify], guard: {{condition: "classify.complexity == 'low'", on_false: {on_false}}}}}
  - {{name: slow_path, dependencies: [classify], guard: {{condition: "classify.complexity == 'high'", on_false: {on_false}}}}}
  - {{name: after_slow, dependencies: [slow_path]}}
  - {{name: combine, dependencies: [fast_path, slow_path]}}
"""


def classified(complexity: str):
    return {"classify": lambda a: {"complexity": complexity}, "combine": lambda a: {"saw": a}}


def test_a_skipped_branch_is_null_with_its_key_and_blocks_nobody():
    ran = run(BRANCHES.format(on_false="skip"), [{"q": 1}], classified("low"))

    (skipped,) = ran.json("slow_path")
    (classified_record,) = ran.records("classify")
    assert skipped["content"]["slow_path"] is None
    assert skipped["unprocessed"] == "guard_skip"
    assert skipped["parent_target_id"] == classified_record.target_id != skipped["target_id"]
    assert ran.events("slow_path") == [("ROUTE", "guard_skip", 1)]
    assert len(ran.calls["after_slow"]) == 1
    (combined,) = ran.own("combine")
    assert combined["saw"]["slow_path"] is None
    assert combined["saw"]["fast_path"] == {"by": "fast_path"}


def test_what_both_branches_filter_in_turn_reaches_no_merge():
    ran = run(BRANCHES.format(on_false="filter"), [{"q": 1}], classified("low"))

    assert ran.records("fast_path") != []
    assert ran.records("slow_path") == ran.records("after_slow") == ran.records("combine") == []
    assert ran.events("slow_path") == [("DROP", "guard_filter", 0)]
    assert ran.events("after_slow") == []
    assert ran.events("combine") == [("DROP", "filtered_branch", 0)]


def test_what_both_branches_filter_is_nowhere_below():
    ran = run(BRANCHES.format(on_false="filter"), [{"q": 1}], classified("medium"))

    for action in ("fast_path", "slow_path", "after_slow", "combine"):
        assert ran.records(action) == []
        assert ran.calls[action] == []
    assert ran.events("fast_path") == ran.events("slow_path") == [("DROP", "guard_filter", 0)]
    assert ran.events("combine") == []


def test_a_filtered_record_is_not_resurrected_below_and_stays_elsewhere():
    ran = run(
        """
actions:
  - {name: chunk}
  - {name: kept, dependencies: [chunk]}
  - {name: cut, dependencies: [chunk], guard: {condition: "chunk.n != 1"}}
  - {name: below, dependencies: [cut]}
  - {name: merge, dependencies: [kept, below]}
  - {name: level, dependencies: [kept]}
  - {name: wide, dependencies: [below, level]}
""",
        [{"q": 1}],
        {"chunk": lambda a: [{"n": 0}, {"n": 1}, {"n": 2}]},
    )

    assert [r.content["chunk"]["n"] for r in ran.records("merge")] == [0, 2]
    assert [r.content["chunk"]["n"] for r in ran.records("wide")] == [0, 2]
    assert [r.content["chunk"]["n"] for r in ran.records("level")] == [0, 1, 2]
    assert ran.event("merge", ran.records("kept")[1]).reason.value == "filtered_branch"


def test_warn_runs_and_says_so_once():
    ran = run(BRANCHES.format(on_false="warn"), [{"q": 1}, {"q": 2}], classified("low"))

    assert len(ran.calls["slow_path"]) == 2
    assert [w.action for w in ran.flow.warnings] == ["slow_path"]


def guarded(condition: str, **tools):
    text = f"""
actions:
  - {{name: start}}
  - {{name: skipped, dependencies: [start], guard: {{condition: "false", on_false: skip}}}}
  - {{name: last, dependencies: [skipped], context_scope: {{drop: [start.n]}}, guard: {{condition: "{condition}"}}}}
"""
    return run(text, [{"q": 1}], {"start": lambda a: {"n": 3, "none": None}, **tools})


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("start.n == 3.0", True),
        ("start.n == 3", True),
        ("has(skipped.result)", False),
        ("!has(skipped.result)", True),
        ("skipped.result == 'x'", False),
        ("!(skipped.result == 'x')", False),
        ("start.none == null", True),
        ("start.none != 'a'", True),
        ("start.none > 1", False),
        ("start.missing == 1 || start.n == 3", True),
        ("start.n == 3 && start.missing == 1", False),
    ],
)
def test_conditions(condition: str, holds: bool):
    ran = guarded(condition)

    # The guard on a field that the action's scope drops still answers.
    assert len(ran.records("last")) == holds


def test_an_error_at_the_top_warns_once_an_action_and_message():
    ran = guarded("!(skipped.result == 'x')")

    ((warning, _),) = ran.flow.warnings.items()
    assert (warning.action, warning.message) == ("last", "a field or key that is read is missing")


@pytest.mark.parametrize(
    "condition", ["start.n == low", "start.flag", "low", "start == null", "start.n ==", "'text'"]
)
def test_a_bare_word_or_field_is_refused_naming_action_and_clause(condition: str):
    found = violations_of(
        f'actions: [{{name: start}}, {{name: last, dependencies: [start], guard: {{condition: "{condition}"}}}}]'
    )

    assert [(code, where) for code, where, _ in found] == [("GUARD_INVALID", "action last, guard")]
    assert condition in found[0][2]


def test_all_skipped_dependents_run_all_filtered_they_get_nothing():
    text = """
actions:
  - {{name: a, guard: {{condition: "source.q == 2", on_false: {on_false}}}}}
  - {{name: b, dependencies: [a]}}
"""
    assert len(run(text.format(on_false="skip"), [{"q": 1}]).calls["b"]) == 1
    assert run(text.format(on_false="filter"), [{"q": 1}]).calls["b"] == []
