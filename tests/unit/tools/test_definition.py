import dataclasses
import datetime
import math
from typing import Any

import pytest
from pydantic import BaseModel

from agenttx_server.tools import EffectClass, ToolDefinitionError, tool


async def test_a_tool_is_still_the_function_it_was():
    @tool("test.double", effects="read_only")
    async def double(number: int) -> int:
        return 2 * number

    assert await double(21) == 42


def test_a_description_holds_what_was_declared():
    @tool("payments.charge", effects="compensatable", timeout_seconds=1.5)
    async def charge(ctx, amount_cents: int):
        """Charge a card."""

    @charge.undo("payments.refund")
    async def refund(ctx, key): ...

    described = charge.describe()

    assert described.name == "payments.charge"
    assert described.description == "Charge a card."
    assert described.effect_class is EffectClass.COMPENSATABLE
    assert described.timeout_us == 1_500_000
    assert described.retries == 0
    assert described.undo_names == ("payments.refund",)


@pytest.mark.parametrize("effects", ["idempotent", "IDEMPOTENT", "Idempotent", EffectClass.IDEMPOTENT])
def test_an_effect_class_may_be_named_in_any_case(effects):
    assert tool("test.tool", effects=effects)(lambda: None).effect_class is EffectClass.IDEMPOTENT


@pytest.mark.parametrize("name", ["", " ", "a b", "é", "x" * 129, "a\n", 5, None])
def test_a_bad_name_is_refused(name):
    with pytest.raises(ToolDefinitionError, match="name"):
        tool(name, effects="read_only")(lambda: None)


@pytest.mark.parametrize("name", ["a", "x" * 128, "payments/v2:charge-card_now.please", "9"])
def test_a_good_name_is_taken(name):
    assert tool(name, effects="read_only")(lambda: None).name == name


@pytest.mark.parametrize(
    "declaration",
    [
        {"effects": "harmless"},
        {"effects": None},
        {"effects": "read_only", "timeout_seconds": 0},
        {"effects": "read_only", "timeout_seconds": -1},
        {"effects": "read_only", "timeout_seconds": math.nan},
        {"effects": "read_only", "timeout_seconds": math.inf},
        {"effects": "read_only", "timeout_seconds": True},
        {"effects": "read_only", "timeout_seconds": "3"},
        {"effects": "read_only", "retries": -1},
        {"effects": "read_only", "retries": 6},
        {"effects": "read_only", "retries": 1.0},
        {"effects": "read_only", "retries": True},
        {"effects": "compensatable", "retries": 1},
        {"effects": "irreversible", "retries": 1},
    ],
)
def test_a_contradictory_declaration_is_refused(declaration):
    with pytest.raises(ToolDefinitionError):
        tool("test.tool", **declaration)(lambda: None)


def test_a_decorator_without_parentheses_says_how_it_is_used():
    with pytest.raises(ToolDefinitionError, match="@tool needs a name"):
        tool(lambda: None, effects="read_only")  # type: ignore[arg-type]


@pytest.mark.parametrize("effects", ["read_only", "transactional"])
def test_a_tool_without_outside_effects_declares_no_undo(effects):
    declared = tool("test.tool", effects=effects)(lambda: None)

    with pytest.raises(ToolDefinitionError, match="compensatable"):
        declared.undo("test.undo")(lambda: None)


def test_two_undo_actions_of_one_name_are_refused():
    declared = tool("test.tool", effects="compensatable")(lambda: None)
    declared.undo("test.undo")(lambda: None)

    with pytest.raises(ToolDefinitionError, match=r"two undo actions named 'test\.undo'"):
        declared.undo("test.undo")(lambda: None)


class Receipt(BaseModel):
    day: datetime.date


@dataclasses.dataclass
class Point:
    x: int


def returning(annotation: Any, value: Any) -> Any:
    def function(): ...

    if annotation is not None:
        function.__annotations__["return"] = annotation
    return tool("test.tool", effects="read_only")(function).output(value)


def test_models_and_dataclasses_become_objects():
    receipt = Receipt(day=datetime.date(2024, 2, 29))
    assert returning(Receipt, receipt) == {"day": "2024-02-29"}
    assert returning(None, receipt) == {"day": "2024-02-29"}
    assert returning(list[Receipt], [receipt]) == [{"day": "2024-02-29"}]
    assert returning(None, Point(1)) == {"x": 1}


def test_plain_values_are_passed_on_as_they_are():
    value = {"a": [1, 1.0, None]}
    assert returning(dict, value) is value
    assert returning(None, value) is value
