"""Stand-in tools for the cases of pipelines: they say what their row tells them to, under the names that pipelines use."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agenttx_server.tools import Tool, ToolCallContext, ToolFailure, tool

_called: Counter[tuple[str, str, Any]] = Counter()
_standing: Counter[tuple[str, Any]] = Counter()


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


def _times(ctx: ToolCallContext, name: str, row: Any) -> int:
    """How often a tool was called for a row in this transaction, this time included."""
    _called[ctx.transaction_id, name, row] += 1
    return _called[ctx.transaction_id, name, row]


@tool("case.count", effects="read_only")
async def count(ctx: ToolCallContext, row: int) -> dict[str, int]:
    """How often it was called for a row."""
    return {"row": row, "times": _times(ctx, "count", row)}


@tool("case.choose", effects="read_only")
async def choose(ctx: ToolCallContext, row: int, wrong: bool) -> dict[str, Any]:
    """A customer: where the row says so, one that is not there, the first time."""
    times = _times(ctx, "choose", row)
    return {"customer": "nobody" if wrong and times == 1 else "anna", "times": times}


@tool("case.order", effects="compensatable")
async def order(ctx: ToolCallContext, row: int) -> dict[str, int]:
    """Order something: how many orders of the row stand, and how many were made."""
    await ctx.register_undo("case.unorder", of=ctx.transaction_id, row=row)
    _standing[ctx.transaction_id, row] += 1
    return {"standing": _standing[ctx.transaction_id, row], "times": _times(ctx, "order", row)}


@order.undo("case.unorder")
async def unorder(of: str, row: int) -> None:
    """Takes the order back."""
    _standing[of, row] -= 1


@tool("case.bill", effects="read_only")
async def bill(customer: str) -> dict[str, str]:
    """Fails where the customer is not there, naming that key."""
    if customer == "nobody":
        raise ToolFailure("foreign_key_violation", "customer 'nobody' is not there", ["customer"])
    return {"billed": customer}


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
    count,
    choose,
    order,
    bill,
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
