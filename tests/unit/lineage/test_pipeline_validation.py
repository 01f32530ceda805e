"""Everything that is wrong with a pipeline, at once, before anything runs."""

from __future__ import annotations

import pytest
from tests.support.pipeline_flows import violations_of

from agenttx_server.lineage.definition import PipelineDefinition
from agenttx_server.lineage.document import read_document, to_document
from agenttx_server.lineage.validation import RESERVED, check_pipeline
from agenttx_server.lineage.yaml_text import YamlRefused, read_yaml
from agenttx_server.pipelines.checking import SentPipeline, check_sent


def codes(text: str) -> list[tuple[str, str]]:
    return [(code, where) for code, where, _ in violations_of(text)]


def test_all_violations_come_at_once():
    found = codes(
        """
pipeline: p
colour: red
actions:
  - {name: a, dependencies: [a]}
  - {name: b, dependencies: [d], guard: {condition: "source.x == low"}}
  - {name: c, dependencies: [b], prompt: "{{ zzz.x }}{% if %}"}
  - {name: d, dependencies: [c, exract]}
  - {name: while}
  - {name: 1x}
  - {name: e}
  - {name: e}
"""
    )
    assert {code for code, _ in found} == {
        "UNKNOWN_FIELD",
        "SELF_DEPENDENCY",
        "GUARD_INVALID",
        "PROMPT_INVALID",
        "UNKNOWN_ACTION",
        "CYCLE",
        "RESERVED_NAME",
        "INVALID_NAME",
        "DUPLICATE_NAME",
    }


def test_a_cycle_is_named_with_its_path():
    (found,) = violations_of(
        "actions: [{name: a, dependencies: [c]}, {name: b, dependencies: [a]}, {name: c, dependencies: [b]}]"
    )
    assert found[0] == "CYCLE"
    assert any(path in found[2] for path in ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c"))


def test_an_unknown_name_has_a_suggestion():
    ((code, where, message),) = violations_of("actions: [{name: extract}, {name: b, dependencies: [exract]}]")
    assert (code, where) == ("UNKNOWN_ACTION", "action b, dependencies")
    assert message.endswith("did you mean 'extract'?")


READERS = """
actions:
  - {{name: start}}
  - {{name: branch, dependencies: [start]}}
  - {{name: parallel, dependencies: [start], {clause}}}
  - {{name: later, dependencies: [parallel]}}
"""


@pytest.mark.parametrize(
    ("clause", "place"),
    [
        ('guard: {condition: "NAME.x == 1"}', "guard"),
        ('prompt: "{{ NAME.x }}"', "prompt"),
        ('args: {v: "${NAME.x}"}', "args"),
        ("context_scope: {observe: [NAME.x]}", "context_scope"),
        ('context_scope: {passthrough: ["NAME.*"]}', "context_scope"),
    ],
)
@pytest.mark.parametrize("name", ["branch", "later"])
def test_a_reader_of_a_parallel_or_later_action_is_told_how_to_mend_it(clause: str, place: str, name: str):
    ((code, where, message),) = violations_of(READERS.format(clause=clause.replace("NAME", name)))

    assert (code, where) == ("NOT_UPSTREAM", f"action parallel, {place}")
    assert f"add '{name}' to the dependencies of 'parallel'" in message


def test_names_upstream_through_dependencies_may_be_read():
    assert violations_of(READERS.format(clause='prompt: "{{ start.x }} {{ source.y }}"')) == []


def test_clauses_that_cant_apply():
    assert codes("actions: [{name: a, on_multiple: product}]") == [
        ("ON_MULTIPLE_NOT_APPLICABLE", "action a, on_multiple")
    ]
    assert {
        code for code, _ in codes("actions: [{name: a, granularity: file, prompt: x, reduce: {by: root}}]")
    } == {
        "FILE_WITH_PROMPT",
        "REDUCE_NOT_APPLICABLE",
    }
    assert codes("actions: [{name: a, reduce: {by: k}}]") == [("INVALID_FIELD", "action a, reduce")]
    assert codes("actions: [{name: a, versions: {range: [3, 1]}}]") == [
        ("INVALID_VERSIONS", "action a, versions")
    ]
    assert codes("actions: [{name: a, versions: {range: [1, 2]}}, {name: a_1}]") == [
        ("DUPLICATE_NAME", "action a_1")
    ]
    assert codes("{}") == [("NO_ACTIONS", "pipeline")]
    assert codes("[]") == [("NO_ACTIONS", "pipeline")]
    assert ("INVALID_DOCUMENT", "pipeline") in codes("7")


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_names(name: str):
    assert ("RESERVED_NAME", f"action {name}") in codes(f'actions: [{{name: "{name}"}}]')


def test_an_unknown_tool_is_a_warning():
    reading = read_document(read_yaml("actions: [{name: a, tool: nowhere}]"), "p")
    (found,) = check_pipeline(reading.definition, lambda name: False)
    assert (found.code, found.is_warning) == ("UNKNOWN_TOOL", True)


def test_a_pipeline_far_too_large_is_refused_for_that():
    actions = [{"name": f"a{number}"} for number in range(201)]
    found = check_pipeline(read_document({"actions": actions}, "p").definition)
    assert [violation.code for violation in found] == ["TOO_LARGE"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x [1]\nb: *x", "anchors"),
        ("a: 1\na: 2", "said twice"),
        ("[" * 60, "nested deeper"),
        ("a: [1", "line 1"),
        ("a: !!python/object/apply:os.system ['x']", "line 1"),
        ("{<<: {a: 1}}", "merge keys"),
        ("? [1]\n: 2", "a key is a text"),
        ("a: .nan", "no JSON"),
    ],
)
def test_yaml_that_is_not_read(text: str, says: str):
    with pytest.raises(YamlRefused, match=says):
        read_yaml(text)


def test_a_date_is_the_text_that_it_was_written_as():
    assert read_yaml("when: 2024-05-01") == {"when": "2024-05-01"}


def test_prompts_that_could_keep_a_core_are_refused():
    loops = "{% for a in source.x %}" * 3 + "{% endfor %}" * 3
    found = violations_of(
        f'actions: [{{name: a, prompt: "{loops}"}}, {{name: b, prompt: "{{{{ range(9) }}}}"}}]'
    )
    assert [(code, where) for code, where, _ in found] == [
        ("PROMPT_INVALID", "action a, prompt"),
        ("UNKNOWN_NAME", "action b, prompt"),
    ]


def test_a_definition_is_read_back_from_its_document():
    text = """
pipeline: p
description: d
transaction: whole
max_concurrency: 3
actions:
  - {name: a, impl: t, kind: tool, model_vendor: x, versions: {param: i, range: [1, 2], mode: sequential}}
  - {name: b, dependencies: [a], args: {x: 1}, prompt: "{{ source.x }}", timeout_seconds: 1.5, on_empty: warn,
     guard: {condition: "has(source.x)", on_false: warn}, on_multiple: collect, on_failure: rollback}
  - {name: c, dependencies: [b], granularity: FILE, context_scope: {observe: [], drop: [b.x], passthrough: [b.y]}}
  - {name: d, dependencies: [c], reduce: {by: source.k}, on_failed_branch: continue}
"""
    definition = read_document(read_yaml(text)).definition
    assert isinstance(definition, PipelineDefinition)
    assert [v for v in check_pipeline(definition) if not v.is_warning] == []
    assert read_document(to_document(definition)).definition == definition


@pytest.mark.parametrize("text", ["actions: [7]", "actions: 7", "7"])
def test_actions_that_cant_be_read_are_not_said_to_be_none(text: str):
    assert {item.code for item in check_sent(SentPipeline(text, name="p")).violations} == {"INVALID_DOCUMENT"}


def test_no_actions_at_all_are_told_when_it_is_checked():
    assert [item.code for item in check_sent(SentPipeline("actions: []", name="p")).violations] == [
        "NO_ACTIONS"
    ]
