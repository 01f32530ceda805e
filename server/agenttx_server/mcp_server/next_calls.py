"""What to call next, exactly: the tool's name and its arguments, as far as they are known."""

from __future__ import annotations

from typing import Any

from agenttx_server.mcp_server.answers import NextCall
from agenttx_server.mcp_server.bounds import compact, fits

__all__ = ["begin", "commit", "get", "list_tools", "retry_step", "rewind", "rollback", "run", "sentence"]

UNKNOWN = "…"
"""Stands for an argument that only the model can give."""


def run(transaction_id: str, step: int, why: str, tool: str = UNKNOWN, arguments: Any = None) -> NextCall:
    """Run a step; a tool and arguments where it is known which."""
    known: Any = arguments if isinstance(arguments, dict) and fits(arguments) else {}
    return NextCall(
        tool="run_step",
        arguments={"transaction_id": transaction_id, "step": step, "tool": tool, "arguments": known},
        why=why,
    )


def retry_step(transaction_id: str, step: int, tool: str, arguments: Any, why: str) -> NextCall:
    """Send a step again as it was: it is answered as it was, or what it waits for is waited for."""
    return run(transaction_id, step, why, tool, arguments)


def begin(why: str) -> NextCall:
    """Begin a transaction."""
    return NextCall(tool="begin_transaction", arguments={}, why=why)


def commit(transaction_id: str, steps: int, why: str) -> NextCall:
    """Commit, if so many steps are done."""
    return NextCall(
        tool="commit_transaction", arguments={"transaction_id": transaction_id, "steps": steps}, why=why
    )


def rollback(transaction_id: str, why: str) -> NextCall:
    """Undo everything."""
    return NextCall(tool="rollback_transaction", arguments={"transaction_id": transaction_id}, why=why)


def rewind(transaction_id: str, to_step: int, why: str) -> NextCall:
    """Go back to before a step."""
    return NextCall(tool="rewind", arguments={"transaction_id": transaction_id, "to_step": to_step}, why=why)


def get(transaction_id: str, why: str, step: int | None = None) -> NextCall:
    """Look at the transaction, or at one of its steps."""
    arguments: dict[str, Any] = {"transaction_id": transaction_id}
    if step is not None:
        arguments["step"] = step
    return NextCall(tool="get_transaction", arguments=arguments, why=why)


def list_tools(why: str, **arguments: Any) -> NextCall:
    """List what run_step can call."""
    return NextCall(tool="list_tools", arguments=arguments, why=why)


def sentence(calls: list[NextCall]) -> str:
    """Return the calls as the last lines of a text; empty where there are none."""
    lines = [f"call {call.tool} with {compact(call.arguments)} {call.why}" for call in calls]
    return "Next: " + ",\n  or ".join(lines) + "." if lines else ""
