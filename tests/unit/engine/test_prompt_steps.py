"""Steps of tools that wait for nothing go a way of their own, and nobody can tell by what becomes of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.engine_harness import Engine, outcome_of
from tests.support.virtual_time import idle, run_in_virtual_time, virtual_time

from agenttx_server.engine.dependency_graph import DependencyGraph
from agenttx_server.engine.errors import EngineError, PreconditionFailed, Unavailable
from agenttx_server.engine.ports import StoreUnavailable, WriteReceipt, WriteSet
from agenttx_server.engine.records import Isolation, TransactionStatus
from agenttx_server.engine.requests import StepStatus

FAILURE = {"category": "missing_record", "message": "no such room", "keys": ["room"]}


def _engine(*, promptly: bool, **settings: Any) -> Engine:
    engine = Engine(**settings)
    tool = engine.tools.describe("jot")
    assert tool is not None
    engine.tools.add(replace(tool, prompt=promptly))
    return engine


# --- the two ways write the same -----------------------------------------------------------

_values = st.sampled_from(("u-1", "U-1", 7, 7.0, True, None, "", {"id": "u-1"}, [7, {"name": "n"}]))
_outputs = st.dictionaries(st.sampled_from(("id", "Name", "user_id", "list")), _values, max_size=3)
_arguments = st.fixed_dictionaries(
    {"output": _outputs},
    optional={
        "put": st.dictionaries(st.sampled_from(("kv/a", "kv/b")), _values, max_size=2),
        "stage": st.lists(st.tuples(st.sampled_from(("mail", "sms")), _values), max_size=2),
        "delete": st.just(["kv/a"]),
        "get": st.just(["kv/a"]),
        "scan": st.just(["kv/"]),
        "user_id": _values,
        "id": _values,
        "refers": st.sampled_from(("${steps.1.id}", "${steps.1}", "$${steps.1}")),
        "fail": st.sampled_from(("plainly", FAILURE)),
    },
)
_operations = st.lists(
    st.one_of(
        _arguments,
        _arguments,
        st.sampled_from(("rewind", "again", "too far", "stale", "no json", "another", "commit")),
    ),
    max_size=8,
)


async def _history(engine: Engine, operations: list[Any], isolation: Isolation) -> list[Any]:
    await engine.begin(isolation=isolation)
    answers: list[Any] = []
    following, generation = 1, 1
    last: tuple[int, Any, str] = 1, {}, ""
    for number, operation in enumerate(operations):
        try:
            if operation == "rewind":
                rewound = await engine.rewind(max(1, following - 2))
                following, generation = rewound.next_step_id, rewound.generation
                continue
            if operation == "commit":
                answers.append(await engine.commit())
                continue
            if operation == "no json":
                answer = await engine.step(following, "jot", text='{"output": ', request_id=f"r{number}")
            elif operation == "again":
                answer = await engine.step(last[0], "jot", last[1], last[2])
            elif operation == "another":
                answer = await engine.step(last[0], "jot", {"output": {"other": 1}}, last[2])
            elif operation == "too far":
                answer = await engine.step(following + 1, "jot", {})
            elif operation == "stale":
                answer = await engine.step(following, "jot", {}, generation=generation + 1)
            else:
                last = following, operation, f"r{number}"
                answer = await engine.step(following, "jot", operation, last[2], generation=generation)
        except EngineError as refused:
            answers.append((type(refused), refused.reason, str(refused)))
        else:
            answers.append(answer)
            following, generation = answer.next_step_id or following, answer.generation
        await engine.assert_memory_equals_store()
    return answers


@given(_operations, st.sampled_from(Isolation))
def test_both_ways_answer_and_write_the_same(operations: list[Any], isolation: Isolation) -> None:
    async def both() -> None:
        quick, general = _engine(promptly=True), _engine(promptly=False)
        answers = await _history(quick, operations, isolation)
        assert answers == await _history(general, operations, isolation)
        assert general.tools.prompt_runs == 0
        assert quick.memory.written == [
            replace(
                write_set,
                # Ids are drawn for what is staged, also where the step goes the general way in the end.
                effects=[
                    replace(effect, effect_id=mine.effect_id, idempotency_key=mine.idempotency_key)
                    for effect, mine in zip(write_set.effects, written.effects, strict=True)
                ],
            )
            for write_set, written in zip(general.memory.written, quick.memory.written, strict=True)
        ]

    run_in_virtual_time(both())


# --- which steps go it ----------------------------------------------------------------------


@virtual_time
async def test_a_step_that_reads_nothing_runs_at_once_and_one_that_reads_as_any_other() -> None:
    engine = _engine(promptly=True)
    await engine.begin()
    await engine.step(1, "jot", {"put": {"kv/a": 1}})
    await engine.step(2, "jot", {"get": ["kv/a"]})
    assert (engine.tools.prompt_runs, engine.tools.count("jot")) == (1, 2)


@virtual_time
async def test_a_step_that_a_person_is_asked_about_does_not_run() -> None:
    engine = _engine(promptly=True)
    engine.tools.ask_before("jot")
    await engine.begin()
    answer = await engine.step(1, "jot", {"put": {"kv/a": 1}})
    assert (answer.status, engine.tools.count()) == (StepStatus.AWAITING_APPROVAL, 0)


@virtual_time
async def test_an_output_over_the_limit_fails_as_ever() -> None:
    engine = _engine(promptly=True)
    await engine.begin()
    answer = await engine.step(1, "jot", {"output": {"text": "x" * 100}}, output_limit=50)
    assert answer.hint is not None
    assert answer.hint.category == "resource_exhausted"


# --- the database ----------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
@virtual_time
async def test_a_write_that_fails_leaves_the_transaction_to_the_next_call(applied: bool) -> None:
    engine = _engine(promptly=True)
    await engine.begin()
    engine.memory.fail_next_write(applied=applied)
    with pytest.raises(Unavailable):
        await engine.step(1, "jot", {"put": {"kv/a": 1}}, "r")
    again = await engine.step(1, "jot", {"put": {"kv/a": 1}}, "r")
    assert (again.status, again.replayed) == (StepStatus.SUCCESS, applied)
    assert engine.tools.count("jot") == (1 if applied else 2)
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_step_is_not_answered_before_it_is_durable_and_keeps_its_turn_until_then() -> None:
    engine = _engine(promptly=True)
    await engine.begin()
    gate = engine.memory.hold_next_write()
    first = asyncio.create_task(engine.step(1, "jot", {"output": {"id": 1}}))
    second = asyncio.create_task(engine.step(2, "jot", {"output": {"id": 2}}))
    await gate.reached()
    await idle()
    assert not first.done()
    assert engine.tools.count("jot") == 1
    assert engine.coordinator.running_tasks == 1
    gate.open()
    assert [(await task).next_step_id for task in (first, second)] == [2, 3]
    assert engine.coordinator.running_tasks == 0


@virtual_time
async def test_a_store_that_takes_no_write_any_more_leaves_the_turn_to_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = _engine(promptly=True)
    await engine.begin()

    def refuse(write_set: WriteSet) -> asyncio.Future[WriteReceipt]:
        raise StoreUnavailable("the store is closed")

    with monkeypatch.context() as patched:
        patched.setattr(engine.memory, "submit", refuse)
        with pytest.raises(Unavailable):
            await engine.step(1, "jot", {"put": {"kv/a": 1}}, "r")
    assert (await engine.step(1, "jot", {"put": {"kv/a": 1}}, "r")).status is StepStatus.SUCCESS


@virtual_time
async def test_a_fault_after_the_write_is_told_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _engine(promptly=True)
    await engine.begin()
    with monkeypatch.context() as patched:
        patched.setattr(DependencyGraph, "record_output", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await engine.step(1, "jot", {"put": {"kv/a": 1}}, "r")
    again = await engine.step(1, "jot", {"put": {"kv/a": 1}}, "r")
    assert (again.status, again.replayed) == (StepStatus.SUCCESS, True)
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_step_on_top_of_what_another_server_wrote_is_judged_anew() -> None:
    one = Engine(is_shared=True, name="one")
    other = Engine(database=one.memory.database, is_shared=True, name="other")
    await one.coordinator.start()
    await other.coordinator.start()
    transaction_id = await one.begin()
    await one.step(1, "jot", {"put": {"kv/a": 1}}, transaction_id=transaction_id)
    await other.step(2, "jot", {"put": {"kv/a": 2}}, transaction_id=transaction_id)
    stale = await outcome_of(one.step(2, "jot", {"put": {"kv/a": 3}}, transaction_id=transaction_id))
    assert isinstance(stale, PreconditionFailed)
    assert stale.metadata["expected_step"] == "3"
    answer = await one.step(3, "jot", {"put": {"kv/a": 3}}, transaction_id=transaction_id)
    assert answer.status is StepStatus.SUCCESS
    record = await one.record(transaction_id)
    assert (record.status, record.next_step_id) == (TransactionStatus.ACTIVE, 4)
    await one.coordinator.stop()
    await other.coordinator.stop()
