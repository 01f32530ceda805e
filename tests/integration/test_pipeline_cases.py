"""The cases that pipelines must come out of as their page says, over real gRPC: each a run on a real server.

The rules themselves are tested on the pure core (tests/unit/lineage); here it is that a run keeps them on its way through
transactions, the database and the wire.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_server import server_process
from tests.unit.lineage import test_seed_patterns as seed

from agenttx import Client, InvalidArgument, NotFound, PipelineRow, PipelineRun, Record

TOOLS = ("tests.support.case_tools:STAND_INS", "tests.support.pipeline_tools")


class Cases:
    """A server, and what the runs on it made."""

    def __init__(self, client: Client, database: Path) -> None:
        self.client = client
        self.database = database

    def run(self, text: str, rows: Sequence[Any]) -> Ran:
        """Run a pipeline, whose records must hold whatever became of it."""
        run = self.client.pipelines.run(text, rows, default_name="case")
        verified = self.client.lineage.verify(run.run_id)
        assert verified.is_sound, verified.breaches
        return Ran(self.client, run)


class Ran:
    """A run and its records."""

    def __init__(self, client: Client, run: PipelineRun) -> None:
        self.client = client
        self.run = run

    def of(self, action: str) -> list[Record]:
        return list(self.client.lineage.records(self.run.run_id, action))

    def own(self, action: str) -> list[Any]:
        return [record.content[action] for record in self.of(action)]

    def parents(self, action: str) -> list[str | None]:
        return [record.parent_target_id for record in self.of(action)]

    def ids(self, action: str) -> list[str]:
        return [record.target_id for record in self.of(action)]

    def became(self, record: Record, action: str) -> list[str]:
        """What became of a record in an action, in what counts."""
        return [
            f"{event.type} {event.reason}".strip()
            for event in self.client.lineage.events(target_id=record.target_id)
            if event.action == action and not event.rewound
        ]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("data")
    with server_process(directory, tools=TOOLS) as process, Client(process.address) as client:
        yield Cases(client, directory / "agenttx.db")


def say(name: str, answer: str = "{}", needs: str = "", more: str = "", fail: str = "") -> str:
    dependencies = f", dependencies: [{needs}]" if needs else ""
    failing = f', fail: "{fail}"' if fail else ""
    return f"  - {{name: {name}, tool: case.say{dependencies}, args: {{answer: {answer}{failing}}}{more}}}\n"


ROWS = '"${source.rows}"'
ONE = "{ok: true}"


def test_one_document_in_three_chunks_and_the_three_queries(cases: Cases):
    text = "pipeline: queried\nactions:\n" + say("extract", ONE)
    text += "".join(say(f"branch_{letter}", ONE, "extract") for letter in "abc")
    text += say("merge", ONE, "branch_a, branch_b, branch_c")
    text += say("chunk_document", ROWS, "merge") + say("process_chunk", ONE, "chunk_document")
    ran = cases.run(text, [{"rows": [{"n": 0}, {"n": 1}, {"n": 2}]}])

    assert ran.parents("process_chunk") == ran.ids("chunk_document")
    assert len(set(ran.parents("process_chunk"))) == 3
    (root,) = {record.root_target_id for record in ran.of("process_chunk")}
    (merged,) = ran.of("merge")

    def ask(query: str) -> list[str]:
        command = ["sqlite3", str(cases.database), query]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return answer.stdout.splitlines()

    # The views show each pipeline's newest run: that of another name is told apart.
    where = "FROM target_data t, json_each(t.data) r WHERE t.pipeline = 'queried' AND t.action_name"
    assert ask(f"SELECT DISTINCT json_extract(r.value, '$.root_target_id') {where} = 'process_chunk'") == [
        root
    ]
    siblings = ask(f"SELECT json_extract(r.value, '$.parent_target_id') {where} LIKE 'branch_%'")
    assert siblings == ran.ids("extract") * 3
    assert ask(f"SELECT json_extract(r.value, '$.target_id') {where} = 'merge'") == [merged.target_id]


def test_children_merged_per_child_stay_as_many_and_a_single_branch_meets_each(cases: Cases):
    text = "actions:\n" + say("a", ROWS) + say("b", ONE, "a") + say("single", ONE)
    text += say("per_child", ONE, "a, b") + say("beside", ONE, "b, single")
    ran = cases.run(text, [{"rows": [{"n": n} for n in range(3)]}])

    assert len(ran.of("per_child")) == 3
    assert len(ran.of("beside")) == 3
    assert {len(record.lineage_sources) for record in ran.of("beside")} == {2}


def test_two_branches_that_fanned_out_are_refused_or_multiplied_or_collected(cases: Cases):
    def text(clause: str) -> str:
        return "actions:\n" + say("a", ROWS) + say("b", ROWS) + say("c", '{all: "${a}"}', "a, b", clause)

    rows = [{"rows": [{"n": 0}, {"n": 1}]}]
    refused = cases.run(text(""), rows)
    assert (refused.run.status, refused.of("a")) == ("FAILED", [])
    assert "a (2), b (2)" in refused.run.reason
    assert len(cases.run(text(", on_multiple: product"), rows).of("c")) == 4
    collected = cases.run(text(", on_multiple: collect"), rows)
    assert collected.own("c") == [{"all": [{"n": 0}, {"n": 1}]}]


def test_second_diamond_has_sources_of_its_own_and_branches_of_unequal_length_meet_at_their_fork(
    cases: Cases,
):
    text = "actions:\n" + say("a", ONE) + say("b", ONE, "a") + say("c", ONE, "a") + say("m", ONE, "b, c")
    text += say("d", ONE, "m") + say("e", ONE, "m") + say("e2", ONE, "e") + say("n", ONE, "d, e2")
    ran = cases.run(text, [{}])

    (first,), (second,) = ran.of("m"), ran.of("n")
    assert set(first.lineage_sources) == {ran.of("b")[0].node_id, ran.of("c")[0].node_id}
    assert set(second.lineage_sources) == {ran.of("d")[0].node_id, ran.of("e2")[0].node_id}
    assert second.content.keys() == {"source", "a", "b", "c", "m", "d", "e", "e2", "n"}
    assert second.parent_target_id == ran.ids("d")[0]


def test_identical_rows_are_told_apart_and_known_again(cases: Cases):
    text = "actions:\n" + say("a", ONE)
    first, second = cases.run(text, [{"q": 1}] * 3), cases.run(text, [{"q": 1}] * 3)

    guids = [record.source_guid for record in first.of("source")]
    assert len(set(guids)) == 3
    assert [record.source_guid for record in second.of("source")] == guids
    assert not set(first.ids("a")) & set(second.ids("a"))
    assert {record.run_id for record in cases.client.lineage.by_source(guids[0])} >= {
        first.run.run_id,
        second.run.run_id,
    }


def test_framework_fields_cant_be_forged_by_a_row_or_a_step(cases: Cases):
    forged = {"node_id": "x", "lineage": ["x"], "target_id": "x", "parent_target_id": "x", "unprocessed": "y"}
    ran = cases.run("actions:\n" + say("a", '"${source}"') + say("b", ONE, "a"), [forged])

    (made,) = ran.of("a")
    assert made.content["a"] == forged
    assert "x" not in (made.target_id, made.node_id, made.parent_target_id, *made.lineage)
    assert made.parent_target_id == ran.ids("source")[0]
    assert ran.of("b")[0].unprocessed == "UNSPECIFIED"


def test_an_ensemble_blocks_or_goes_on_with_two_answers_and_a_null(cases: Cases):
    def text(clause: str) -> str:
        answers = "".join(
            say(f"m{n}", f"{{says: {n}}}", "prepare", fail="${source.fail}" if n == 2 else "")
            for n in (1, 2, 3)
        )
        best = say("best", '{seen: ["${m1}", "${m2}", "${m3}"]}', "m1, m2, m3", clause)
        return "actions:\n" + say("prepare", ONE) + answers + best

    ran = cases.run(text(""), [{"fail": ""}, {"fail": "no"}])
    good, bad = ran.ids("prepare")
    for answer in ("m1", "m3"):
        assert ran.parents(answer) == [good, bad]
    best, stone = ran.of("best")
    assert best.content["best"] == {"seen": [{"says": 1}, {"says": 2}, {"says": 3}]}
    assert (stone.unprocessed, stone.blocked_by) == ("UPSTREAM_UNPROCESSED", "m2")
    assert ran.run.status == "COMPLETED_WITH_FAILURES"
    going_on = cases.run(text(", on_failed_branch: continue"), [{"fail": "no"}])
    assert going_on.own("best") == [{"seen": [{"says": 1}, None, {"says": 3}]}]


@pytest.mark.parametrize(
    ("pattern", "last", "records"),
    [
        (seed.DIAMOND, "score_quality", 1),
        (seed.MAP_REDUCE, "aggregate_results", 3),
        (seed.ENSEMBLE, "best_answer", 1),
        (seed.CONDITIONAL, "combine", 1),
    ],
)
def test_the_patterns_load_validate_and_run_as_they_are_written(
    cases: Cases, pattern: str, last: str, records: int
):
    assert cases.client.pipelines.validate(pattern, default_name="seed").valid
    ran = cases.run(pattern, [{"doc": 1}])
    assert ran.run.status == "COMPLETED"
    assert len(ran.of(last)) == records
    if last == "combine":
        assert ran.own("combine")[0]["seen"].startswith("Fast result: quick")
        assert ran.own("slow_path") == [None]


@pytest.mark.parametrize("scope", ["", "transaction: whole\n"])
def test_the_file_pattern_runs_behind_its_rows_and_in_one_transaction_with_them(cases: Cases, scope: str):
    ran = cases.run(scope + seed.FILE_MODE.lstrip(), [{"doc": 1}])
    flattened = ran.ids("flatten")
    assert ran.parents("dedup_tool") == [flattened[0], flattened[2]]
    lines = "".join(cases.client.lineage.export(ran.run.run_id)).splitlines()
    assert len(lines) == 6


FILE = "pipeline: files\nactions:\n" + say("a", ONE)
FILE += "  - {name: f, tool: case.file, dependencies: [a], granularity: FILE}\n"


def file_run(cases: Cases, plan: Any, rows: int = 3) -> Ran:
    return cases.run(FILE, [{"n": number, "plan": plan} for number in range(rows)])


def test_file_tools_keep_identities_by_index(cases: Cases):
    reordered = file_run(cases, [2, 0, 1])
    received = reordered.ids("a")
    assert reordered.parents("f") == [received[2], received[0], received[1]]
    kept = file_run(cases, [0, 2, 4], rows=5)
    received = kept.ids("a")
    assert kept.parents("f") == [received[0], received[2], received[4]]
    assert [kept.became(record, "f") for record in kept.of("a")] == [
        ["MODIFY"],
        ["DROP tool_dropped"],
        ["MODIFY"],
        ["DROP tool_dropped"],
        ["MODIFY"],
    ]
    twice = file_run(cases, [1, 1])
    assert twice.parents("f") == [twice.ids("a")[1]] * 2


def test_file_tools_aggregate_with_fresh_lineage_and_join_under_the_first(cases: Cases):
    ran = file_run(cases, [None, [0, 1, 2]])
    aggregate, joined = ran.of("f")
    assert (aggregate.is_root, aggregate.lineage) == (True, (aggregate.node_id,))
    edges = cases.client.lineage.record(aggregate.target_id).edges
    assert [(edge.parent, edge.kind) for edge in edges] == [(one, "AGGREGATE") for one in ran.ids("a")]
    first = ran.of("a")[0]
    assert (joined.parent_target_id, joined.root_target_id) == (first.target_id, first.root_target_id)
    assert joined.lineage_sources == tuple(record.node_id for record in ran.of("a"))
    assert [ran.became(record, "f") for record in ran.of("a")] == [["JOIN"]] * 3


@pytest.mark.parametrize(
    "index", [99, [99, 0], [0, 99], True, -1, "0", 1.5, [None], []], ids=lambda index: repr(index)
)
def test_an_index_that_is_none_is_refused_naming_the_output(cases: Cases, index: Any):
    ran = file_run(cases, [index])
    assert (ran.run.status, ran.of("f")) == ("FAILED", [])
    (event, *_) = cases.client.lineage.events(target_id=ran.ids("a")[0])
    assert (event.type, event.reason) == ("FAIL", "error")
    assert "output 0" in event.detail


def test_a_missing_index_and_an_empty_answer_are_refused(cases: Cases):
    assert file_run(cases, {"records": [{"data": {}}]}).run.status == "FAILED"
    assert file_run(cases, {"records": []}).run.status == "FAILED"


def test_positions_count_what_the_tool_received_and_files_are_calls_of_their_own(cases: Cases):
    guarded = FILE.replace("granularity: FILE", 'granularity: FILE, guard: {condition: "source.n != 0"}')
    rows = [{"n": number, "plan": [0]} for number in range(3)]
    ran = cases.run(guarded, rows)
    assert ran.parents("f") == [ran.ids("a")[1]]
    files = cases.run(FILE, [PipelineRow(row, path) for row, path in zip(rows, "xxy", strict=True)])
    received = files.ids("a")
    assert files.parents("f") == [received[0], received[2]]
    assert [record.relative_path for record in files.of("f")] == ["x", "y"]


def guarded(name: str, condition: str, on_false: str, needs: str = "a") -> str:
    return say(name, ONE, needs, f', guard: {{condition: "{condition}", on_false: {on_false}}}')


def test_a_skip_blocks_nobody_and_a_filter_removes_from_there_down(cases: Cases):
    text = "actions:\n" + say("a", '"${source}"') + guarded("skipped", "a.n == 1", "skip")
    text += guarded("filtered", "a.n == 1", "filter") + say("other", ONE, "a")
    text += guarded("sees", "has(skipped.ok)", "skip", "skipped") + say("below", ONE, "filtered, other")
    text += say("beside", ONE, "other") + guarded("negated", "!(skipped.ok == true)", "skip", "skipped")
    ran = cases.run(text, [{"n": 1}, {"n": 2}])

    passed, stopped = ran.of("skipped")
    assert (passed.content["skipped"], stopped.content["skipped"]) == ({"ok": True}, None)
    assert (stopped.unprocessed, stopped.parent_target_id) == ("GUARD_SKIP", ran.ids("a")[1])
    assert stopped.target_id != stopped.parent_target_id
    assert len(ran.of("filtered")) == len(ran.of("below")) == 1
    assert len(ran.of("beside")) == 2
    assert ran.own("sees") == [{"ok": True}, None]
    # Nothing is said of what was skipped: neither the comparison nor its negation holds.
    assert ran.own("negated") == [None, None]
    assert ran.became(ran.of("a")[1], "filtered") == ["DROP guard_filter"]
    assert {item.action: item.skipped for item in ran.run.counts}["skipped"] == 1


def test_all_skipped_dependents_run_and_all_filtered_they_get_nothing(cases: Cases):
    text = "actions:\n" + say("a", '"${source}"') + guarded("s", "a.n == 3.0", "skip") + say("t", ONE, "s")
    text += guarded("f", "a.n == 99", "filter") + say("g", ONE, "f")
    ran = cases.run(text, [{"n": 1}, {"n": 2}, {"n": 3}])

    assert ran.own("s") == [None, None, {"ok": True}]  # 3.0 is 3
    assert len(ran.of("t")) == 3
    assert (ran.of("f"), ran.of("g"), ran.run.status) == ([], [], "COMPLETED")


def test_a_failed_record_is_a_tombstone_below_and_one_without_success_fails_the_action(cases: Cases):
    text = "actions:\n" + say("a", ONE) + say("b", ONE, "a", fail="${source.fail}")
    text += say("c", ONE, "b") + say("d", ONE, "c")
    ran = cases.run(text, [{"fail": ""}, {"fail": "no", "unprocessed": "upstream_unprocessed"}])

    counts = {item.action: item for item in ran.run.counts}
    for action in ("c", "d"):
        (stone,) = [record for record in ran.of(action) if record.unprocessed != "UNSPECIFIED"]
        assert (stone.unprocessed, stone.blocked_by) == ("UPSTREAM_UNPROCESSED", "b")
        assert (counts[action].processed, counts[action].blocked) == (1, 1)  # no call for it
    assert ran.run.status == "COMPLETED_WITH_FAILURES"
    assert ran.became(ran.of("a")[1], "b") == ["FAIL error"]
    assert cases.run(text, [{"fail": "no"}]).run.status == "FAILED"
    # What failed in an earlier run blocks no new one.
    assert cases.run(text, [{"fail": ""}]).run.status == "COMPLETED"


@pytest.mark.parametrize("scope", ["root", "whole"])
def test_c56_identity_survives_merges_splits_a_file_tool_a_skip_and_a_rewind(cases: Cases, scope: str):
    """Two rows with the same content, in a transaction each, the FILE tool behind both, or all in one."""
    from tests.integration.test_pipeline_runs import C56

    rows = [{"n": number, "same": "same"} for number in (1, 3)]
    ran = cases.run(C56.replace("transaction: whole", f"transaction: {scope}"), rows)
    assert ran.run.status == "COMPLETED"
    roots, chunks, kept = ran.of("source"), ran.of("chunk"), ran.of("dedupe")
    assert [record.is_root for record in roots] == [True, True]
    assert len({root.transaction_id for root in roots}) == (2 if scope == "root" else 1)
    assert ran.own("branch_c") == [None, None]
    for root, merged in zip(roots, ran.of("merge"), strict=True):
        branches = [ran.of(f"branch_{letter}") for letter in "abc"]
        mine = [one for of in branches for one in of if one.root_target_id == root.target_id]
        assert merged.lineage_sources == tuple(one.node_id for one in mine)
        assert merged.root_target_id == root.target_id
    assert ran.own("total") == [{"count": 5}, {"count": 5}]
    # By identity, not by equal content: of equal chunks, also of two roots, the first was kept, and it is the parent.
    assert len(chunks) == 10
    assert [record.parent_target_id for record in kept[:4]] == [chunks[i].target_id for i in (0, 1, 2, 4)]
    (summary,) = kept[4:]
    assert (summary.is_root, summary.lineage) == (True, (summary.node_id,))
    assert summary.lineage_sources == tuple(chunk.node_id for chunk in chunks)
    edges = cases.client.lineage.record(summary.target_id).edges
    assert [(edge.parent, edge.kind) for edge in edges] == [(one.target_id, "AGGREGATE") for one in chunks]
    lines = "".join(cases.client.lineage.export(ran.run.run_id)).splitlines()
    for record in map(json.loads, lines):
        assert ("parent_target_id" in record) == (
            record["target_id"] not in {*ran.ids("source"), summary.target_id}
        )
    # One query finds all that came of a root: the summary came of both.
    below = [{one.target_id for one in cases.client.lineage.descendants(root.target_id)} for root in roots]
    assert below[0] & below[1] == {summary.target_id}
    assert below[0] | below[1] | set(ran.ids("source")) == {json.loads(line)["target_id"] for line in lines}
    # The records of the undone steps are gone; what became of their inputs is told, and flagged.
    for root in roots:
        rewound_outputs(cases, root.transaction_id)


BILL_HINT = "Hint: customer 'nobody' is not there. Create the referenced row first, or pass the id of an existing one."


def rewound_outputs(cases: Cases, transaction_id: str) -> set[str]:
    """The records that events of undone steps tell of; there are such events, and none of the records."""
    events = list(cases.client.lineage.events(transaction_id=transaction_id))
    assert any(event.rewound for event in events)
    # Rows and skips take no call: of an input that stands the same record is made again.
    made = [event for event in events if event.rewound and event.type not in ("RECEIVE", "ROUTE")]
    outputs = {output for event in made for output in event.outputs}
    for output in outputs:
        with pytest.raises(NotFound):
            cases.client.lineage.record(output)
    return outputs


@pytest.mark.parametrize("scope", ["root", "whole"])
def test_a_rollback_goes_back_to_the_root_cause_and_the_undone_records_are_gone_but_not_their_events(
    cases: Cases, scope: str
):
    text = f"""
transaction: {scope}
actions:
  - {{name: check, tool: case.count, args: {{row: "${{source.n}}"}}}}
  - {{name: choose, tool: case.choose, dependencies: [check], args: {{row: "${{source.n}}", wrong: "${{source.wrong}}"}}}}
  - {{name: order, tool: case.order, dependencies: [choose], args: {{row: "${{source.n}}"}}}}
  - {{name: bill, tool: case.bill, dependencies: [order], args: {{customer: "${{choose.customer}}"}}, on_failure: rollback}}
"""
    ran = cases.run(text, [{"n": 0, "wrong": False}, {"n": 1, "wrong": True}])

    assert ran.run.status == "COMPLETED"
    assert ran.own("bill") == [{"billed": "anna"}] * 2
    # What chose wrongly is the root cause: its group chose again, what was before it did not.
    assert [own["times"] for own in ran.own("check")] == [1, 1]
    assert [(own["customer"], own["times"]) for own in ran.own("choose")] == [
        ("anna", 1 if scope == "root" else 2),
        ("anna", 2),
    ]
    # The other row's order is undone only where both are one transaction. None stands twice.
    assert [own["times"] for own in ran.own("order")] == [1 if scope == "root" else 2, 2]
    assert [own["standing"] for own in ran.own("order")] == [1, 1]
    good, bad = ran.of("source")
    gone = rewound_outputs(cases, bad.transaction_id)
    # One that chose and one that ordered, of each row of the transaction.
    assert len(gone) == (2 if scope == "root" else 4)
    kept = {one.target_id for root in (good, bad) for one in cases.client.lineage.by_root(root.target_id)}
    assert len(kept) == 10
    assert not kept & gone
    undone = [
        event for event in cases.client.lineage.events(transaction_id=bad.transaction_id) if event.rewound
    ]
    assert {event.action for event in undone} == {"choose", "order", "bill"}
    assert [event.detail for event in undone if event.type == "FAIL"] == [BILL_HINT]
    if scope == "root":
        events = cases.client.lineage.events(transaction_id=good.transaction_id)
        assert not any(event.rewound for event in events)


def test_readers_of_parallel_and_later_actions_are_refused_all_at_once(cases: Cases):
    text = """
pipeline: readers
actions:
  - {name: start, tool: case.say, args: {answer: "${later.x}"}}
  - {name: left, tool: case.say, dependencies: [start], guard: {condition: "right.x == 1"}, args: {answer: 1}}
  - {name: right, tool: case.say, dependencies: [start], prompt: "{{ left.x }} {{ later.x }}"}
  - {name: beside, tool: case.say, dependencies: [start], context_scope: {observe: [left.x], passthrough: ["later.*"]}}
  - {name: later, tool: case.say, dependencies: [left, right], args: {answer: "${start.x}${left.x}"}}
"""
    expected = [
        ("action beside, context_scope", "later"),
        ("action beside, context_scope", "left"),
        ("action left, guard", "right"),
        ("action right, prompt", "later"),
        ("action right, prompt", "left"),
        ("action start, args", "later"),
    ]
    found = cases.client.pipelines.validate(text)
    assert not found.valid
    assert {item.code for item in found.violations} == {"NOT_UPSTREAM"}
    assert sorted((item.where, item.message.split("'")[1]) for item in found.violations) == expected
    assert all("to the dependencies of" in item.message for item in found.violations)
    for refused_call in (
        lambda: cases.client.pipelines.register(text),
        lambda: cases.client.pipelines.run(text, [{"n": 1}]),
    ):
        with pytest.raises(InvalidArgument) as refused:
            refused_call()
        assert len(refused.value.violations) == len(expected)
    assert not [run for run in cases.client.pipelines.runs() if run.pipeline == "readers"]
