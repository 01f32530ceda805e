"""Parents, roots, merges and reduces, as docs/lineage.md says."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Any

import pytest
from tests.support.pipeline_flows import ToolFailed, run, violations_of

from agenttx_server.lineage.merging import MergeRefused

CHUNKS = """
actions:
  - {name: chunk}
  - {name: process_chunk, dependencies: [chunk]}
"""
DIAMOND = """
actions:
  - {name: extract}
  - {name: branch_a, dependencies: [extract]}
  - {name: branch_b, dependencies: [extract]}
  - {name: branch_c, dependencies: [extract]}
  - {name: merge, dependencies: [branch_a, branch_b, branch_c]}
"""


def three(arguments: dict[str, Any]) -> list[dict[str, int]]:
    return [{"n": 0}, {"n": 1}, {"n": 2}]


def failing(arguments: dict[str, Any]) -> Any:
    raise ToolFailed("no")


def test_each_processed_chunk_is_the_child_of_its_own_chunk():
    ran = run(CHUNKS, [{"doc": 1}], {"chunk": three, "process_chunk": lambda a: {"of": a["chunk"]["n"]}})

    chunks, processed = ran.records("chunk"), ran.records("process_chunk")
    assert [r.parent_target_id for r in processed] == [c.target_id for c in chunks]
    assert [r.content["process_chunk"]["of"] for r in processed] == [0, 1, 2]
    assert len({r.parent_target_id for r in processed}) == 3
    assert {r.root_target_id for r in ran.made} == {ran.records("source")[0].target_id}
    (root,) = ran.json("source")
    assert "parent_target_id" not in root
    assert root["lineage"] == [root["node_id"]]
    # A root's children begin with their own node; rows of one result share a node and are numbered.
    assert [c.lineage for c in chunks] == [(c.node_id,) for c in chunks]
    assert [c.node_id[-2:] for c in chunks] == ["_0", "_1", "_2"]
    assert len({c.node_id[:-2] for c in chunks}) == 1
    assert len({c.version_correlation_id for c in chunks}) == 3
    assert ran.events("chunk") == [("FORK", "", 3)]
    assert ran.events("process_chunk") == [("MODIFY", "", 1)] * 3


def test_a_diamond_sees_all_branches_and_has_an_edge_to_each():
    ran = run(DIAMOND, [{"a": 1}, {"a": 2}], {"merge": lambda a: {"saw": sorted(a)}})

    for merged in ran.records("merge"):
        assert merged.content["merge"]["saw"] == ["branch_a", "branch_b", "branch_c", "extract", "source"]
    first = ran.records("merge")[0]
    branches = [ran.records(name)[0] for name in ("branch_a", "branch_b", "branch_c")]
    assert len({b.parent_target_id for b in branches}) == 1
    assert first.parent_target_id == branches[0].target_id
    assert ran.edges_of(first) == [(b.target_id, "merge") for b in branches]
    assert first.lineage_sources == tuple(b.node_id for b in branches)
    assert first.lineage == (branches[0].lineage[0], *(b.node_id for b in branches), first.node_id)
    assert len(ran.records("merge")) == 2
    assert ran.events("merge") == [("JOIN", "", 1)] * 6
    # A merge changes none of what it merged.
    assert all(b.content.keys() == {"source", "extract", b.action} for b in branches)


def test_a_second_diamond_has_sources_of_its_own():
    ran = run(
        DIAMOND
        + """
  - {name: left, dependencies: [merge]}
  - {name: right, dependencies: [merge]}
  - {name: again, dependencies: [left, right]}
""",
        [{"a": 1}],
    )

    (again,) = ran.records("again")
    assert again.lineage_sources == (ran.records("left")[0].node_id, ran.records("right")[0].node_id)
    assert ran.records("left")[0].lineage_sources == ()


def test_branches_of_one_and_two_hops_meet_at_their_fork():
    ran = run(
        """
actions:
  - {name: fork}
  - {name: short, dependencies: [fork]}
  - {name: long_1, dependencies: [fork]}
  - {name: long_2, dependencies: [long_1]}
  - {name: merge, dependencies: [short, long_2]}
""",
        [{"a": 1}],
        {"fork": three, "merge": lambda a: {"n": a["fork"]["n"], "saw": sorted(a)}},
    )

    assert [own["n"] for own in ran.own("merge")] == [0, 1, 2]
    assert ran.own("merge")[0]["saw"] == ["fork", "long_1", "long_2", "short", "source"]
    # What both branches have is there once, as the first that is declared has it; that one is the parent.
    for merged, short, long in zip(
        ran.records("merge"), ran.records("short"), ran.records("long_2"), strict=True
    ):
        assert merged.content["fork"] is short.content["fork"]
        assert merged.parent_target_id == short.target_id
        assert list(merged.content) == ["source", "fork", "short", "long_1", "long_2", "merge"]
        assert ran.edges_of(merged) == [(short.target_id, "merge"), (long.target_id, "merge")]


def test_children_merged_with_their_parent_stay_as_many():
    ran = run(
        """
actions:
  - {name: chunk}
  - {name: process, dependencies: [chunk]}
  - {name: both, dependencies: [chunk, process]}
""",
        [{"a": 1}],
        {"chunk": three, "process": lambda a: {"of": a["chunk"]["n"]}},
    )

    assert [(r.content["chunk"]["n"], r.content["process"]["of"]) for r in ran.records("both")] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]


FANNED = """
actions:
  - {{name: start}}
  - {{name: many, dependencies: [start]}}
  - {{name: other, dependencies: [start]}}
  - {{name: merge, dependencies: [many, other]{clause}}}
"""


def test_a_branch_that_fanned_out_meets_a_single_record_as_often():
    ran = run(FANNED.format(clause=""), [{"a": 1}], {"many": three})

    assert [r.content["many"]["n"] for r in ran.records("merge")] == [0, 1, 2]
    (other,) = ran.records("other")
    assert ran.event("merge", other).outputs == tuple(r.target_id for r in ran.records("merge"))


def test_two_branches_that_fanned_out_are_refused_unless_the_action_says_how():
    with pytest.raises(MergeRefused, match=r"many \(3\), other \(3\)"):
        run(FANNED.format(clause=""), [{"a": 1}], {"many": three, "other": three})


def test_product_and_collect():
    tools = {"many": three, "other": three}
    product = run(FANNED.format(clause=", on_multiple: product"), [{"a": 1}], tools)
    collect = run(FANNED.format(clause=", on_multiple: collect"), [{"a": 1}], tools)

    pairs = [(r.content["many"]["n"], r.content["other"]["n"]) for r in product.records("merge")]
    assert pairs == [(m, o) for m in range(3) for o in range(3)]
    (collected,) = collect.records("merge")
    assert collected.content["many"] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert collected.content["start"] == {"by": "start"}
    assert len(collected.lineage_sources) == 6


def test_three_identical_rows_are_three_records_and_the_same_ones_next_time():
    first = run(DIAMOND, [{"a": 1}] * 3, run_id="run-1")
    second = run(DIAMOND, [{"a": 1}] * 3, run_id="run-2")

    guids = [r.source_guid for r in first.records("source")]
    assert len(set(guids)) == 3
    assert guids == [r.source_guid for r in second.records("source")]
    assert not {r.target_id for r in first.made} & {r.target_id for r in second.made}
    assert len(first.records("merge")) == 3


def test_what_a_step_or_row_says_under_framework_names_is_content():
    forged = {"node_id": "x", "lineage": ["y"], "target_id": "z", "parent_target_id": None, "source_guid": 7}
    ran = run(CHUNKS, [forged], {"chunk": lambda a: dict(forged)})

    (chunk,) = ran.json("chunk")
    assert chunk["content"] == {"source": forged, "chunk": forged}
    assert chunk["parent_target_id"] == ran.records("source")[0].target_id
    assert chunk["lineage"] == [chunk["node_id"]]


def test_two_documents_never_merge():
    ran = run(DIAMOND, [{"same": 1}, {"same": 1}])

    assert len({r.root_target_id for r in ran.records("merge")}) == 2
    for merged in ran.records("merge"):
        assert len(ran.edges_of(merged)) == 3


ENSEMBLE = """
actions:
  - {{name: prepare}}
  - {{name: gpt4_answer, dependencies: [prepare], model_vendor: openai}}
  - {{name: claude_answer, dependencies: [prepare], model_vendor: anthropic}}
  - {{name: gemini_answer, dependencies: [prepare], model_vendor: gemini}}
  - {{name: best_answer, dependencies: [gpt4_answer, claude_answer, gemini_answer]{clause}}}
"""


def test_an_ensemble_shares_its_parent_and_a_missing_answer_blocks():
    ran = run(ENSEMBLE.format(clause=""), [{"q": 1}], {"claude_answer": failing})

    (prepared,) = ran.records("prepare")
    assert ran.records("gpt4_answer")[0].parent_target_id == prepared.target_id
    assert ran.records("claude_answer") == []
    (stone,) = ran.json("best_answer")
    assert (stone["unprocessed"], stone["blocked_by"]) == ("upstream_unprocessed", "claude_answer")
    assert stone["content"]["best_answer"] is None
    assert ran.calls["best_answer"] == []


def test_a_group_of_several_roots_that_failed_meets_each_of_its_roots_by_itself():
    def fails(_: Any) -> Any:
        raise ToolFailed("no")

    text = """
actions:
  - {name: a}
  - {name: grouped, dependencies: [a], reduce: {by: source.k}}
  - {name: f, dependencies: [a], on_empty: skip}
  - {name: merge, dependencies: [f, grouped]}
"""
    ran = run(text, [{"k": 1, "n": n} for n in range(2)], {"grouped": fails, "f": lambda a: []})

    # Neither branch made a record: the tombstone of each root is of that root alone.
    stones = ran.records("merge")
    assert [stone.blocked_by for stone in stones] == ["grouped"] * 2
    assert {stone.root_target_id for stone in stones} == {r.target_id for r in ran.records("source")}
    for stone in stones:
        roots = {r.target_id: r.root_target_id for r in ran.made}
        assert {roots[parent] for parent, _ in ran.edges_of(stone)} == {stone.root_target_id}


def test_an_ensemble_goes_on_with_two_answers_and_a_null():
    ran = run(
        ENSEMBLE.format(clause=", on_failed_branch: continue"),
        [{"q": 1}],
        {"claude_answer": failing, "best_answer": lambda a: {"claude": a["claude_answer"], "n": len(a)}},
    )

    assert ran.own("best_answer") == [{"claude": None, "n": 5}]


VERSIONS = """
actions:
  - {{name: prepare}}
  - {{name: vote, dependencies: [prepare], versions: {{param: i, range: [1, 3]{mode}}}, args: {{who: "${{version.i}}"}}}}
  - {{name: best, dependencies: [vote]}}
"""


def test_versions_of_one_input_are_correlated_and_all_are_depended_on():
    ran = run(VERSIONS.format(mode=""), [{"q": 1}, {"q": 2}], {"vote": lambda a: {"who": a["who"]}})

    votes = [ran.records(f"vote_{i}") for i in (1, 2, 3)]
    for of_input in zip(*votes, strict=True):
        assert len({r.version_correlation_id for r in of_input}) == 1
    assert votes[0][0].version_correlation_id != votes[0][1].version_correlation_id
    assert [r.content["vote_2"]["who"] for r in ran.records("best")] == [2, 2]


def test_rows_of_versions_meet_row_by_row_and_never_with_another_correlation():
    ran = run(
        VERSIONS.format(mode=", mode: sequential"),
        [{"q": 1}],
        {"vote": lambda a: [{"who": a["who"], "row": 0}, {"who": a["who"], "row": 1}]},
    )

    assert [[r.content[f"vote_{i}"]["row"] for i in (1, 2, 3)] for r in ran.records("best")] == [
        [0, 0, 0],
        [1, 1, 1],
    ]


def test_a_version_without_a_record_stands_beside_every_row_of_the_others():
    def vote(arguments: dict[str, Any]) -> Any:
        if arguments["who"] == 2:
            raise ToolFailed("no")
        return [{"row": 0}, {"row": 1}]

    text = VERSIONS.format(mode="").replace(
        "dependencies: [vote]", "dependencies: [vote], on_failed_branch: continue"
    )
    ran = run(text, [{"q": 1}], {"vote": vote})

    assert [r.content["vote_2"] for r in ran.records("best")] == [None, None]


REDUCE = """
actions:
  - {{name: chunk}}
  - {{name: process, dependencies: [chunk]}}
  - {{name: total, dependencies: [process], reduce: {{by: {by}}}{clause}}}
"""


def test_a_reduce_by_root_is_one_call_a_root():
    ran = run(
        REDUCE.format(by="root", clause=""),
        [{"d": 1}, {"d": 2}],
        {"chunk": three, "total": lambda a: {"n": len(a["records"])}},
    )

    assert ran.own("total") == [{"n": 3}, {"n": 3}]
    first = ran.records("total")[0]
    processed = ran.records("process")[:3]
    assert first.parent_target_id == processed[0].target_id
    assert ran.edges_of(first) == [(p.target_id, "reduce") for p in processed]
    assert first.lineage == (*processed[0].lineage, first.node_id)
    assert first.lineage_sources == tuple(p.node_id for p in processed)


def test_a_reduce_by_a_field_groups_falsy_values_and_no_nulls():
    values = [0, "", False, None, 0, 0.0]
    ran = run(
        REDUCE.format(by="source.k", clause=""),
        [{"k": value} for value in values],
        {"total": lambda a: {"ks": [r["data"]["source"]["k"] for r in a["records"]]}},
    )

    assert ran.own("total") == [{"ks": [0, 0]}, {"ks": [""]}, {"ks": [False]}, {"ks": [0.0]}]
    assert ("DROP", "no_group", 0) in ran.events("total")


def test_an_aggregate_meets_every_record_that_it_was_made_of():
    text = REDUCE.format(by="root", clause="") + "  - {name: share, dependencies: [process, total]}\n"
    ran = run(text, [{"d": 1}, {"d": 2}], {"chunk": three})

    assert len(ran.records("share")) == 6
    assert all(r.content["total"] == {"by": "total"} for r in ran.records("share"))


def test_what_calls_are_settled_in_which_order_makes_no_difference():
    text = FANNED.format(clause="")
    forwards = run(text, [{"a": 1}, {"a": 2}], {"many": three})
    backwards = run(text, [{"a": 1}, {"a": 2}], {"many": three}, order=lambda calls: calls[::-1])

    assert forwards.json("merge") == backwards.json("merge")


def test_arguments_scope_and_passthrough():
    ran = run(
        """
actions:
  - {name: extract}
  - name: seo
    dependencies: [extract]
    args: {keywords: "${extract.words}", text: "first: ${extract.words.0}, $${kept}", n: 1}
    context_scope: {passthrough: [source.id, extract.secret], drop: [extract.secret]}
  - name: next
    dependencies: [seo]
    context_scope: {observe: [extract.words, "seo.*"]}
""",
        [{"id": 7, "note": "x"}],
        {"extract": lambda a: {"words": ["a", "b"], "secret": "s"}, "seo": lambda a: a, "next": lambda a: a},
    )

    assert ran.own("seo") == [{"id": 7, "keywords": ["a", "b"], "text": "first: a, ${kept}", "n": 1}]
    assert ran.own("next") == [{"extract": {"words": ["a", "b"]}, "seo": ran.own("seo")[0]}]


def test_an_argument_that_is_not_there_is_a_failed_call():
    ran = run("actions: [{name: a}, {name: b, dependencies: [a], args: {x: '${a.missing}'}}]", [{"q": 1}])

    (event,) = [e for e in ran.flow.events() if e.action == "b"]
    assert (event.type.value, event.detail) == ("FAIL", "${a.missing} has no value: there is no 'missing'")


def test_versions_are_refused_in_a_read_that_does_not_say_which():
    found = violations_of(
        "actions: [{name: v, versions: {range: [1, 2]}}, {name: b, dependencies: [v], prompt: '{{ v.x }}'}]"
    )
    assert [(code, where) for code, where, _ in found] == [("NOT_UPSTREAM", "action b, prompt")]
    assert "name one, as in 'v_1'" in found[0][2]


def test_ids_of_one_root_stand_beside_one_another_and_roots_in_the_order_of_the_rows():
    """A record goes where its neighbours are in each index: one at random costs the more the larger the table is."""
    ran = run(DIAMOND, [{"n": number // 2} for number in range(300)])

    roots = [record.target_id for record in ran.records("source")]
    assert roots == sorted(roots)
    by_id = sorted(ran.made, key=lambda record: record.target_id)
    runs_of_a_root = 1 + sum(a.root_target_id != b.root_target_id for a, b in pairwise(by_id))
    assert runs_of_a_root == len(roots)
    assert {uuid.UUID(record.target_id).version for record in ran.made} == {8}
    assert len({record.target_id for record in ran.made}) == len(ran.made) == 300 * 6
