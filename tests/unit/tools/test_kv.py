from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction, StagedEffect

from agenttx_server.engine.ports import ArgumentsRefused, ToolFailure
from agenttx_server.engine.records import EffectClass, HintCategory
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin.effect import EFFECT_TOOLS
from agenttx_server.tools.builtin.kv import KV_TOOLS

TOOLS = ToolRegistry([*KV_TOOLS, *EFFECT_TOOLS])


@pytest.fixture
def transaction() -> FakeTransaction:
    return FakeTransaction()


async def run(transaction: FakeTransaction, name: str, **arguments: Any) -> Any:
    return await TOOLS.run(name, arguments, transaction.context())


@pytest.mark.parametrize(
    "value", [None, 0, 1, 1.0, -0.0, 2**63, "", "a\x00b", [], {}, {"": {"01": 2, "1": 1}}]
)
async def test_a_value_comes_back_as_it_was_put(transaction, value):
    assert await run(transaction, "kv.put", key="a", value=value) == {"key": "a", "value": value}

    got = await run(transaction, "kv.get", key="a")
    assert got == {"key": "a", "value": value, "found": True}
    assert repr(got["value"]) == repr(value)  # 1 == 1.0 and 0.0 == -0.0 would pass for equal


async def test_a_missing_key_is_a_failure_that_names_the_argument(transaction):
    with pytest.raises(ToolFailure) as failed:
        await run(transaction, "kv.get", key="user")

    assert failed.value.category == HintCategory.MISSING_RECORD
    assert failed.value.keys == ("key",)
    assert "'user'" in str(failed.value)


@pytest.mark.parametrize("default", [None, 5, {"a": 1}])
async def test_a_default_replaces_the_failure_null_included(transaction, default):
    assert await run(transaction, "kv.get", key="user", default=default) == {
        "key": "user",
        "value": default,
        "found": False,
    }


async def test_the_default_of_a_key_with_a_null_is_not_used(transaction):
    await run(transaction, "kv.put", key="user", value=None)

    assert (await run(transaction, "kv.get", key="user", default=5))["value"] is None


async def test_a_deleted_key_is_missing(transaction):
    await run(transaction, "kv.put", key="user", value=None)

    assert await run(transaction, "kv.delete", key="user") == {"key": "user", "deleted": True}
    assert await run(transaction, "kv.delete", key="user") == {"key": "user", "deleted": False}
    assert transaction.state == {}


@pytest.mark.parametrize("key", ["", "a\x00", "x" * 513])
@pytest.mark.parametrize("name", ["kv.put", "kv.get", "kv.delete"])
async def test_a_bad_key_is_refused_by_every_tool(transaction, name, key):
    arguments = {"key": key, **({"value": 1} if name == "kv.put" else {})}

    with pytest.raises(ToolFailure) as failed:
        await run(transaction, name, **arguments)
    assert failed.value.keys == ("key",)


@pytest.mark.parametrize("key", ["a/b", "é", " ", "${x}", "x" * 512])
async def test_any_other_text_is_a_key(transaction, key):
    await run(transaction, "kv.put", key=key, value=1)

    assert transaction.state == {f"kv/{key}": "1"}


async def test_a_long_key_is_not_repeated_whole_in_an_error(transaction):
    with pytest.raises(ToolFailure) as failed:
        await run(transaction, "kv.get", key="s" * 500)

    assert len(str(failed.value)) < 200


async def test_a_value_is_required_even_if_it_may_be_null(transaction):
    with pytest.raises(ArgumentsRefused, match="missing argument 'value'"):
        await run(transaction, "kv.put", key="a")


async def test_an_effect_is_staged_under_the_key_that_was_given(transaction):
    out = await run(transaction, "effect.stage", channel="mail", payload={"to": "a@b"}, idempotency_key="k")

    assert out == {"effect_id": "effect-1", "channel": "mail"}
    assert transaction.effects == [StagedEffect("effect-1", "mail", {"to": "a@b"}, "k")]


async def test_an_effect_without_key_leaves_it_to_the_engine(transaction):
    await run(transaction, "effect.stage", channel="mail", payload=None)

    assert transaction.effects == [StagedEffect("effect-1", "mail", None, "")]


def test_the_effect_classes_are_what_recovery_relies_on():
    classes = {tool.name: tool.effect_class for tool in TOOLS.describe_all()}

    assert classes == {
        "effect.stage": EffectClass.TRANSACTIONAL,
        "kv.delete": EffectClass.TRANSACTIONAL,
        "kv.get": EffectClass.READ_ONLY,
        "kv.put": EffectClass.TRANSACTIONAL,
    }
