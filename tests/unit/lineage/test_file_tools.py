"""FILE tools: identity by source_index, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.pipeline_flows import Ran, run

from agenttx_server.lineage import dataflow

FILE = """
actions:
  - {name: flatten}
  - {name: dedup, dependencies: [flatten], granularity: FILE}
  - {name: after, dependencies: [dedup]}
  - {name: other, dependencies: [flatten]}
  - {name: merge, dependencies: [dedup, other]}
"""


def out(index: Any, data: Any = None) -> dict[str, Any]:
    return {"source_index": index, "data": data if data is not None else {"kept": index}}


def ran_with(outputs: Any, rows: int = 3, text: str = FILE) -> Ran:
    return run(
        text,
        [{"q": number} for number in range(rows)],
        {
            "flatten": lambda a: {"same": "x"},
            "dedup": lambda a: outputs if isinstance(outputs, dict) else {"records": outputs},
        },
    )


def failure(ran: Ran) -> str:
    (detail,) = {e.detail for e in ran.flow.events() if e.action == "dedup"}
    return detail


def test_a_reorder_keeps_identities():
    ran = ran_with([out(2), out(0), out(1)])

    flattened = ran.records("flatten")
    assert [r.parent_target_id for r in ran.records("dedup")] == [flattened[i].target_id for i in (2, 0, 1)]
    assert [r.root_target_id for r in ran.records("dedup")] == [
        flattened[i].root_target_id for i in (2, 0, 1)
    ]


def test_what_is_kept_keeps_its_parent_and_what_is_not_is_dropped_without_blocking():
    ran = ran_with([out(0), out(2), out(4)], rows=5)

    flattened = ran.records("flatten")
    assert [r.parent_target_id for r in ran.records("dedup")] == [flattened[i].target_id for i in (0, 2, 4)]
    assert [ran.event("dedup", r).type.value for r in flattened] == [
        "MODIFY",
        "DROP",
        "MODIFY",
        "DROP",
        "MODIFY",
    ]
    assert [r.content["dedup"] for r in ran.records("merge")] == [
        {"kept": 0},
        {"kept": 2},
        {"kept": 4},
        None,
        None,
    ]
    assert len(ran.records("after")) == 3


def test_null_is_an_aggregation_with_fresh_lineage():
    ran = ran_with([out(None, {"sum": 1}), out(None, {"sum": 1})])

    first, second = ran.json("dedup")
    inputs = ran.records("flatten")
    for made in (first, second):
        assert "parent_target_id" not in made
        assert made["root_target_id"] == made["target_id"]
        assert made["lineage"] == [made["node_id"]]
        assert made["content"] == {"flatten": {"same": "x"}, "dedup": {"sum": 1}}
    assert first["source_guid"] != second["source_guid"]
    record = ran.records("dedup")[0]
    assert ran.edges_of(record) == [(r.target_id, "aggregate") for r in inputs]
    assert [ran.event("dedup", r).type.value for r in inputs] == ["JOIN"] * 3
    # Two such outputs never merge, and their own ancestors don't meet them: nothing is lost either.
    merged = ran.records("merge")
    assert len(merged) == 5
    assert len({r.root_target_id for r in merged}) == 5


def test_a_list_joins_its_inputs_under_the_first():
    ran = ran_with([out([0, 1, 2])])

    (joined,) = ran.records("dedup")
    inputs = ran.records("flatten")
    assert (joined.parent_target_id, joined.root_target_id) == (inputs[0].target_id, inputs[0].root_target_id)
    assert ran.edges_of(joined) == [(r.target_id, "reduce") for r in inputs]
    assert joined.lineage_sources == tuple(r.node_id for r in inputs)
    assert [ran.event("dedup", r).type.value for r in inputs] == ["JOIN"] * 3


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (99, "source_index 99 is out of range"),
        ([99, 0], "source_index 99 is out of range"),
        ([0, 99], "source_index 99 is out of range"),
        (True, "no index"),
        (-1, "out of range"),
        ("0", "no index"),
        (1.5, "no index"),
        ([None], "no index"),
        ([], "an empty list"),
        ([0, 0], "twice"),
    ],
)
def test_an_index_that_is_none_is_refused_naming_the_output(index: Any, says: str):
    ran = ran_with([out(0), out(index)])

    assert failure(ran).startswith("output 1")
    assert says in failure(ran)
    assert ran.records("dedup") == []


def test_a_missing_index_and_another_shape_are_refused():
    assert "output 0 has no source_index" in failure(ran_with([{"data": {}}]))
    assert "a FILE tool answers" in failure(ran_with({"rows": []}))


def test_two_outputs_of_one_input_are_both_its_children():
    ran = ran_with([out(0), out(0), out(1), out(2)])

    first = ran.records("flatten")[0]
    children = ran.records("dedup")[:2]
    assert [c.parent_target_id for c in children] == [first.target_id] * 2
    assert ran.event("dedup", first).type.value == "FORK"
    assert len({c.version_correlation_id for c in children}) == 2


def test_positions_count_what_the_tool_received_after_its_guard():
    text = FILE.replace("granularity: FILE", 'granularity: FILE, guard: {condition: "source.q > 0"}')
    ran = ran_with([out(0)], text=text)

    assert ran.records("dedup")[0].parent_target_id == ran.records("flatten")[1].target_id
    assert [e[1] for e in ran.events("dedup")] == ["guard_filter", "", "tool_dropped"]


def test_an_empty_answer_for_three_inputs_fails_unless_allowed():
    assert "the output is empty" in failure(ran_with([]))
    allowed = ran_with([], text=FILE.replace("granularity: FILE", "granularity: FILE, on_empty: skip"))
    assert allowed.events("dedup") == [("DROP", "on_empty", 0)] * 3
    assert [r.content["dedup"] for r in allowed.records("merge")] == [None] * 3


def test_each_file_is_a_call_of_its_own():
    ran = run(
        FILE,
        [{"q": 0}, {"q": 1}, {"q": 2}],
        {"dedup": lambda a: {"records": [out(i) for i in range(len(a["records"]))]}},
        paths=["a.json", "b.json", "a.json"],
    )

    assert [len(call.inputs) for call in ran.calls["dedup"]] == [2, 1]
    assert len(ran.records("merge")) == 3


def test_more_records_than_a_call_gets_are_refused_and_the_tool_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(dataflow, "MAX_GROUPED", 2)
    text = "actions: [{name: f, granularity: file}, {name: g, reduce: {by: source.k}}]"
    rows = [{"k": n} for n in (1, 1, 1, 2)]
    ran = run(text, rows, {"f": lambda a: {"records": [out(0)]}}, paths=["x", "x", "x", "y"])
    for action in ("f", "g"):
        assert [call.problem for call in ran.calls[action]] == ["3 records are more than 2 for one call", ""]
        assert [kind for kind, _, _ in ran.events(action)].count("FAIL") == 3
