"""The code on the page about workers works."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from agenttx.testing import run_tool

PAGE = Path(__file__).resolve().parents[3] / "docs" / "workers.md"


async def test_the_five_lines_make_a_tool_whose_effect_can_be_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    charged: dict[str, int] = {}
    gateway: Any = types.ModuleType("gateway")

    async def charge(amount: int, customer: str, idempotency_key: str) -> dict[str, str]:
        charged[idempotency_key] = amount
        return {"id": customer}

    async def refund(key: str) -> None:
        charged.pop(key, None)

    gateway.charge, gateway.refund = charge, refund
    monkeypatch.setitem(sys.modules, "gateway", gateway)
    namespace: dict[str, Any] = {"__name__": "payments_worker"}
    exec(first, namespace)

    run = await run_tool(namespace["charge"], {"amount_cents": 500, "customer_id": "c-1"})
    assert run.result == {"id": "c-1"}
    assert charged == {"key-1": 500}
    await run.run_undo(times=2)
    assert charged == {}
