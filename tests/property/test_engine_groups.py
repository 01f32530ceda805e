"""The outcome of a group is a function of what its members do, never of when they do it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.support.engine_harness import Engine, call
from tests.support.scripted_tools import Behaviour, ToolRun, obey
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.engine.records import HintCategory
from agenttx_server.engine.requests import StepAnswer, StepStatus

KEYS = ("kv/a", "kv/aa", "kv/b", "other/a")
PREFIXES = ("kv/", "kv/a", "other/")

_members = st.fixed_dictionaries(
    {
        "get": st.lists(st.sampled_from(KEYS), max_size=2, unique=True),
        "scan": st.lists(st.sampled_from(PREFIXES), max_size=1),
        "put": st.dictionaries(st.sampled_from(KEYS), st.integers(0, 2), max_size=2),
        "delete": st.lists(st.sampled_from(KEYS), max_size=1),
        "stage": st.lists(st.tuples(st.just("mail"), st.integers(0, 9)).map(list), max_size=2),
        "fail": st.sampled_from((None, None, None, None, "no")),
        "effect": st.sampled_from((None, "room", "table")),
    }
).map(lambda drawn: {key: value for key, value in drawn.items() if value})


def _after(seconds: float) -> Behaviour:
    async def behave(run: ToolRun) -> Any:
        await asyncio.sleep(seconds)
        return await obey(run)

    return behave


async def _outcome(members: list[dict[str, Any]], delays: list[float]) -> tuple[Any, ...]:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 0, "other/a": 0}})
    arrival = iter(delays)
    engine.tools.next("book", *(_after(next(arrival)) for _ in members))
    calls = [call("book", member, f"g{number}") for number, member in enumerate(members)]
    answers = await engine.group(2, *calls)
    await engine.assert_memory_equals_store()
    _check_judgement(members, answers)
    again = await engine.group(2, *calls)
    assert tuple(replace(answer, replayed=False) for answer in again) == answers
    if answers[0].next_step_id:
        await engine.commit()
    return (
        tuple(replace(answer, rollback_latency_ms=0.0) for answer in answers),
        {key: await engine.committed(key) for key in KEYS},
        engine.tools.effects,
        engine.sink.payloads(),
    )


def _touched(member: dict[str, Any]) -> tuple[set[str], set[str], set[str]]:
    written = set(member.get("put", {})) | set(member.get("delete", ()))
    return set(member.get("get", ())), set(member.get("scan", ())), written


def _clash(one: dict[str, Any], two: dict[str, Any]) -> bool:
    for reader, writer in ((one, two), (two, one)):
        read, scanned, _ = _touched(reader)
        _, _, written = _touched(writer)
        if read & written or any(key.startswith(prefix) for key in written for prefix in scanned):
            return True
    return bool(_touched(one)[2] & _touched(two)[2])


def _check_judgement(members: list[dict[str, Any]], answers: tuple[StepAnswer, ...]) -> None:
    """The rule said once more, naively: in step order, a member falls that clashes with one that stands."""
    standing: list[dict[str, Any]] = []
    for member, answer in zip(members, answers, strict=True):
        failed = answer.status is not StepStatus.SUCCESS
        if member.get("fail"):
            assert failed
        elif any(_clash(member, other) for other in standing):
            assert failed
            assert answer.hint is not None
            assert answer.hint.category is HintCategory.CONFLICT
        else:
            assert not failed
            standing.append(member)


@settings(max_examples=100)
@given(st.data())
def test_no_finish_order_changes_what_comes_of_a_group(data: st.DataObject) -> None:
    members = data.draw(st.lists(_members, min_size=2, max_size=5))
    ticks = [0.1 * number for number in range(len(members))]
    first = data.draw(st.permutations(ticks))
    second = data.draw(st.permutations(ticks))

    async def both() -> None:
        one = await _outcome(members, first)
        event("failed" if one[0][0].decision else "succeeded")
        assert await _outcome(members, second) == one

    run_in_virtual_time(both())
