"""The page about custom tools holds: its examples load as tools, run and are undone."""

import re
from pathlib import Path

import pytest
from tests.support.fake_tool_context import FakeTransaction

from agenttx_server.tools import ToolRegistry, load_tools

PAGE = Path(__file__).resolve().parents[3] / "docs" / "custom-tools.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each example as a module of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for number, example in enumerate(EXAMPLES, 1):
        name = f"page_example_{tmp_path.name.replace('-', '_')}_{number}"
        (tmp_path / f"{name}.py").write_text(example)
        names.append(name)
    return names


async def test_the_first_example_charges_and_refunds(modules):
    tools = ToolRegistry(load_tools(f"{modules[0]}:charge"))
    (charge,) = load_tools(modules[0])
    payments = charge.function.__globals__["PAYMENTS"]
    transaction = FakeTransaction()

    out = await tools.run(
        "payments.charge", {"amount_cents": 500, "customer_id": "c-1"}, transaction.context()
    )
    assert out == {"payment_id": "key-1-1", "customer_id": "c-1"}
    assert payments == {"key-1-1": 500}

    await transaction.rewind(tools)
    assert payments == {}


async def test_the_blocking_example_runs(modules):
    tools = ToolRegistry(load_tools(f"{modules[1]}:TOOLS"))

    assert await tools.run("code.test", {"target": "all"}, FakeTransaction().context()) == {
        "summary": "ok all"
    }


def test_every_example_is_one_of_these():
    assert len(EXAMPLES) == 2
