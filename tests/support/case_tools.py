"""Stand-in tools for the cases of pipelines: they say what their row tells them to, under the names that pipelines use."""

from __future__ import annotations

from typing import Any

from agenttx_server.tools import Tool, ToolFailure, tool


@tool("case.say", effects="read_only")
async def say(answer: Any, fail: Any = None) -> Any:
    """Answer what it was given; fails if it is told to."""
    if fail:
        raise ToolFailure("invalid_value", f"told to fail: {fail}")
    return answer


@tool("case.file", effects="read_only")
async def file(records: list[dict[str, Any]]) -> Any:
    """A FILE tool that answers as the first row's plan says: a list of source_index, or a whole answer."""
    plan = records[0]["data"]["source"]["plan"]
    if not isinstance(plan, list):
        return plan
    return {
        "records": [
            {"source_index": index, "data": {"kept": [record["data"]["source"]["n"] for record in records]}}
            for index in plan
        ]
    }


def _stand_in(name: str, answer: Any) -> Tool:
    """A tool that takes whatever namespaces the patterns have, and gives one answer."""

    @tool(name, effects="read_only")
    async def stand_in(
        source: Any = None,
        records: Any = None,
        validate: Any = None,
        prepare: Any = None,
        classify: Any = None,
        flatten: Any = None,
        chunk_document: Any = None,
        process_chunk: Any = None,
        generate_seo: Any = None,
        generate_recommendations: Any = None,
        assess_reading_level: Any = None,
        gpt4_answer: Any = None,
        claude_answer: Any = None,
        gemini_answer: Any = None,
        fast_path: Any = None,
        slow_path: Any = None,
        prompt: str = "",
    ) -> Any:
        """Stands in for a tool of a pattern."""
        if records is not None:
            return {
                "records": [
                    {"source_index": record["source_index"], "data": {"q": number}}
                    for number, record in enumerate(records)
                    if number != 1
                ]
            }
        seen = {"best_answer": [gpt4_answer, claude_answer, gemini_answer], "combine": prompt}.get(name)
        return answer if seen is None else {"seen": seen}

    return stand_in


STAND_INS = [
    say,
    file,
    *(
        _stand_in(name, answer)
        for name, answer in {
            "validate": {"ok": True},
            "generate_seo": {"primary_keywords": "k"},
            "generate_recommendations": {"similar_books": ["b"]},
            "assess_reading_level": {"reading_level": "adult"},
            "score_quality": {"score": 1},
            "chunk_document": [{"n": 0}, {"n": 1}, {"n": 2}],
            "process_chunk": {"done": True},
            "aggregate_results": {"joined": True},
            "prepare": {"asked": True},
            "gpt4_answer": {"says": "a"},
            "claude_answer": {"says": "b"},
            "gemini_answer": {"says": "c"},
            "best_answer": None,
            "classify": {"complexity": "low"},
            "fast_path": {"result": "quick"},
            "slow_path": {"result": "thorough"},
            "combine": None,
            "flatten": [{"q": 0}, {"q": 1}, {"q": 2}],
            "dedup_tool": None,
        }.items()
    ),
]
