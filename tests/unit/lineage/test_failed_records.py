"""A failed record blocks, one tombstone in each later action, and no call."""

from __future__ import annotations

from typing import Any

from tests.support.pipeline_flows import ToolFailed, run

CHAIN = """
actions:
  - {{name: a}}
  - {{name: b, dependencies: [a]{clause}}}
  - {{name: c, dependencies: [b]}}
  - {{name: side, dependencies: [a]}}
  - {{name: both, dependencies: [c, side]}}
"""


def fails_for_two(arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments["source"]["q"] == 2:
        raise ToolFailed("bad row")
    return {"ok": True}


def test_a_failed_record_leaves_one_tombstone_in_each_later_action():
    ran = run(CHAIN.format(clause=""), [{"q": 1}, {"q": 2}], {"b": fails_for_two})

    assert len(ran.records("b")) == 1
    for action in ("c", "both"):
        stones = [r for r in ran.records(action) if r.unprocessed]
        assert [(s.unprocessed.value, s.blocked_by) for s in stones if s.unprocessed] == [
            ("upstream_unprocessed", "b")
        ]
        assert len(ran.calls[action]) == 1
    failed = ran.records("a")[1]
    assert ran.event("b", failed).detail == "bad row"
    assert ran.records("c")[1].parent_target_id == failed.target_id
    assert ran.records("c")[1].content["b"] is None
    assert len(ran.calls["side"]) == 2


def test_continue_treats_it_as_a_skip():
    text = CHAIN.format(clause="").replace("{name: c, ", "{name: c, on_failed_branch: continue, ")
    ran = run(text, [{"q": 2}], {"b": fails_for_two, "c": lambda a: {"b": a["b"]}})

    assert ran.own("c") == [{"b": None}]
    assert ran.records("both")[0].unprocessed is None


def test_a_marker_of_an_earlier_run_in_the_row_blocks_nothing():
    row = {"unprocessed": "upstream_unprocessed", "blocked_by": "b", "q": 1}
    ran = run(CHAIN.format(clause=""), [row], {"b": fails_for_two})

    assert ran.records("both")[0].unprocessed is None


def test_an_empty_output_fails_unless_allowed():
    empty = {"b": lambda a: []}
    assert run(CHAIN.format(clause=""), [{"q": 1}], empty).events("b") == [("FAIL", "error", 0)]
    skipped = run(CHAIN.format(clause=", on_empty: skip"), [{"q": 1}], empty)
    assert skipped.events("b") == [("DROP", "on_empty", 0)]
    assert skipped.events("c") == []
    assert [r.content["b"] for r in skipped.records("both")] == [None]


def test_a_failed_member_blocks_its_group_and_its_merge():
    ran = run(
        """
actions:
  - {name: chunk}
  - {name: b, dependencies: [chunk]}
  - {name: total, dependencies: [b], reduce: {by: root}}
  - {name: counted, dependencies: [b], reduce: {by: root}, on_failed_branch: continue}
""",
        [{"q": 1}],
        {
            "chunk": lambda a: [{"n": n} for n in range(3)],
            "b": lambda a: fails_for_two({"source": {"q": a["chunk"]["n"]}}),
            "counted": lambda a: {"n": len(a["records"])},
        },
    )

    (stone,) = ran.records("total")
    assert stone.blocked_by == "b"
    assert len(ran.edges_of(stone)) == 3
    assert ran.own("counted") == [{"n": 3}]
