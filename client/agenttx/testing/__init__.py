"""Tests of your own tools, without a server: run one in this process and see what it did to its transaction.

    from agenttx.testing import run_tool

    async def test_a_charge_can_be_taken_back():
        run = await run_tool(charge, {"amount_cents": 500, "customer_id": "c-1"})
        assert run.result == {"id": "ch-1"}
        assert run.undo[0].name == "payments.refund"
        await run.run_undo()

Needs pydantic: ``pip install 'agenttx[worker]'``.
"""

from __future__ import annotations

from agenttx.testing.tool_run import MadeStep, RegisteredUndo, StagedEffect, ToolRun, run_tool

__all__ = ["MadeStep", "RegisteredUndo", "StagedEffect", "ToolRun", "run_tool"]
