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
THINGS = ("file", "file/d", "file/d/a", "file/da", "mail/a")

_members = st.fixed_dictionaries(
    {
        "touch": st.lists(st.tuples(st.sampled_from(THINGS), st.booleans()).map(list), max_size=2),
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
    return bool(_touched(one)[2] & _touched(two)[2]) or _clash_outside(one, two)


def _clash_outside(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return any(
        (writes or other_writes)
        and (key == other or key.startswith(f"{other}/") or other.startswith(f"{key}/"))
        for key, writes in one.get("touch", ())
        for other, other_writes in two.get("touch", ())
    )


def _check_judgement(members: list[dict[str, Any]], answers: tuple[StepAnswer, ...]) -> None:
    """The rule said once more, naively: in step order, a member falls that clashes with one that stands.

    One that failed or fell stands with what it touched outside, and only with that.
    """
    standing: list[dict[str, Any]] = []
    for member, answer in zip(members, answers, strict=True):
        failed = answer.status is not StepStatus.SUCCESS
        outside = {"touch": member.get("touch", ())}
        if any(_clash(outside if member.get("fail") else member, other) for other in standing):
            assert failed
            assert answer.hint is not None
            assert answer.hint.category is HintCategory.CONFLICT
            standing.append(outside)
        elif member.get("fail"):
            assert failed
            standing.append(outside)
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


# --- outside things that members take away from one another ---------------------------------

_acts = st.tuples(st.sampled_from(("read", "write", "take")), st.sampled_from("abc"))


def _acting(act: str, name: str, files: set[str], seconds: float) -> Behaviour:
    async def behave(run: ToolRun) -> Any:
        await run.context.touch(f"file/{name}", writes=act != "read")
        await asyncio.sleep(seconds)
        if act != "write" and name not in files:
            raise RuntimeError(f"there is no {name}")
        if act == "write":
            files.add(name)
        elif act == "take":
            files.remove(name)

    return behave


async def _decided(acts: list[tuple[str, str]], delays: list[float]) -> tuple[Any, ...]:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    files = {"a", "b"}
    engine.tools.next(
        "book", *(_acting(*act, files, seconds) for act, seconds in zip(acts, delays, strict=True))
    )
    answers = await engine.group(2, *(call("book") for _ in acts))
    await engine.assert_memory_equals_store()
    lost = [
        (number, answer.hint)
        for number, answer in enumerate(answers)
        if answer.hint is not None and answer.hint.category is HintCategory.CONFLICT
    ]
    return answers[0].decision, lost, (await engine.record()).constraints, answers[0].next_step_id


@settings(max_examples=100)
@given(st.data())
def test_the_decision_doesn_t_depend_on_who_took_a_thing_first(data: st.DataObject) -> None:
    acts = data.draw(st.lists(_acts, min_size=2, max_size=5))
    ticks = [0.1 * number for number in range(len(acts))]
    first = data.draw(st.permutations(ticks))
    second = data.draw(st.permutations(ticks))

    async def both() -> None:
        one = await _decided(acts, first)
        event("lost" if one[1] else "failed" if one[0] else "succeeded")
        assert await _decided(acts, second) == one

    run_in_virtual_time(both())
