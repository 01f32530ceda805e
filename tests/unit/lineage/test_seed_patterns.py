"""The five patterns as their page writes them: they load as they are, validate and run."""

from __future__ import annotations

from typing import Any

from tests.support.pipeline_flows import run, violations_of

DIAMOND = """
actions:
  - name: validate
    dependencies: []

  - name: generate_seo
    dependencies: [validate]

  - name: generate_recommendations
    dependencies: [validate]

  - name: assess_reading_level
    dependencies: [validate]

  - name: score_quality
    dependencies: [generate_seo, generate_recommendations, assess_reading_level]
"""
PROMPT = """
- name: score_quality
  dependencies: [generate_seo, generate_recommendations, assess_reading_level]
  prompt: |
    SEO Keywords: {{ generate_seo.primary_keywords }}
    Similar Books: {{ generate_recommendations.similar_books }}
    Reading Level: {{ assess_reading_level.reading_level }}

    Score the overall quality of this enriched catalog entry.
"""
MAP_REDUCE = """
actions:
  - name: chunk_document
    kind: tool
    impl: chunk_document

  - name: process_chunk
    dependencies: [chunk_document]

  - name: aggregate_results
    dependencies: [process_chunk]
    kind: tool
    impl: aggregate_results
"""
ENSEMBLE = """
actions:
  - name: prepare

  - name: gpt4_answer
    dependencies: [prepare]
    model_vendor: openai

  - name: claude_answer
    dependencies: [prepare]
    model_vendor: anthropic

  - name: gemini_answer
    dependencies: [prepare]
    model_vendor: gemini

  - name: best_answer
    dependencies: [gpt4_answer, claude_answer, gemini_answer]
"""
CONDITIONAL = """
actions:
  - name: classify

  - name: fast_path
    dependencies: [classify]
    guard:
      condition: "classify.complexity == 'low'"
      on_false: skip

  - name: slow_path
    dependencies: [classify]
    guard:
      condition: "classify.complexity == 'high'"
      on_false: skip

  - name: combine
    dependencies: [fast_path, slow_path]
    prompt: |
      {% if fast_path %}Fast result: {{ fast_path.result }}{% endif %}
      {% if slow_path %}Slow result: {{ slow_path.result }}{% endif %}
"""
FILE_MODE = """
actions:
  - name: flatten
  - name: dedup_tool
    dependencies: [flatten]
    granularity: FILE
"""


def test_the_diamond():
    ran = run(DIAMOND, [{"isbn": 1}])
    assert ran.records("score_quality")[0].content.keys() >= {"generate_seo", "assess_reading_level"}


def test_the_diamond_with_its_prompt():
    text = DIAMOND[: DIAMOND.index("  - name: score_quality")] + PROMPT.replace("\n", "\n  ")
    tools: dict[str, Any] = {
        "generate_seo": lambda a: {"primary_keywords": "k"},
        "score_quality": lambda a: {"prompt": a["prompt"]},
    }
    (own,) = run(text, [{"isbn": 1}], tools).own("score_quality")
    assert own["prompt"].startswith("SEO Keywords: k\nSimilar Books: \nReading Level: \n\nScore")


def test_a_fragment_is_told_what_it_lacks():
    found = violations_of(PROMPT)
    assert [code for code, _, _ in found] == ["UNKNOWN_ACTION"] * 3


def test_map_reduce():
    tools: dict[str, Any] = {"chunk_document": lambda a: [{"n": n} for n in range(3)]}
    ran = run(MAP_REDUCE, [{"doc": "x"}], tools)
    assert len({record.root_target_id for record in ran.records("process_chunk")}) == 1
    assert len({record.parent_target_id for record in ran.records("process_chunk")}) == 3


def test_the_ensemble():
    ran = run(ENSEMBLE, [{"q": "?"}])
    parents = {ran.records(f"{who}_answer")[0].parent_target_id for who in ("gpt4", "claude", "gemini")}
    assert parents == {ran.records("prepare")[0].target_id}
    assert ran.plan.actions["gpt4_answer"].metadata == {"model_vendor": "openai"}


def test_the_conditional_merge():
    tools: dict[str, Any] = {
        "classify": lambda a: {"complexity": "low"},
        "fast_path": lambda a: {"result": "quick"},
        "combine": lambda a: {"prompt": a["prompt"]},
    }
    assert run(CONDITIONAL, [{"q": 1}], tools).own("combine") == [{"prompt": "Fast result: quick\n\n"}]


def test_file_mode():
    tools: dict[str, Any] = {
        "flatten": lambda a: [{"q": f"Q{n}"} for n in range(3)],
        "dedup_tool": lambda a: {"records": [r for r in a["records"] if r["data"]["flatten"]["q"] != "Q1"]},
    }
    ran = run(FILE_MODE, [{"q": 1}], tools)
    assert [r.lineage[:-1] for r in ran.records("dedup_tool")] == [
        ran.records("flatten")[0].lineage,
        ran.records("flatten")[2].lineage,
    ]
