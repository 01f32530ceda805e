"""A rewind of very many state rows goes in parts, so that others can write in between; and ends as one that does not."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.engine_harness import Engine
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine import rewind_parts
from agenttx_server.engine.records import TransactionStatus, UndoState
from agenttx_server.engine.rewind_parts import MOST_ROWS_AT_ONCE, ROWS_A_PART, cut, may_be_cut

REMOVAL = "write -> ROLLING_BACK"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewinds of more than four rows go in parts of two."""
    monkeypatch.setattr(rewind_parts, "MOST_ROWS_AT_ONCE", 4)
    monkeypatch.setattr(rewind_parts, "ROWS_A_PART", 2)


async def _written(steps: int, tool: str = "note") -> Engine:
    engine = Engine()
    await engine.begin()
    for step in range(1, steps + 1):
        arguments = {"put": {f"kv/{step}": step, "kv/newest": step}}
        await engine.step(step, tool, arguments if tool == "note" else arguments | {"effect": f"e{step}"})
    return engine


async def _state(engine: Engine, *keys: str) -> dict[str, object]:
    """What stands under those of the keys that are there."""
    return {key: value for key, value in (await engine.state(*keys)).items() if value is not None}


# --- where it is cut ------------------------------------------------------------------------


@given(
    st.dictionaries(st.integers(1, 5_000), st.integers(1, 9_000), max_size=60),
    st.sets(st.integers(1, 5_000), max_size=10),
)
def test_parts_are_small_go_from_the_newest_and_leave_little(rows: dict[int, int], whole: set[int]):
    parts = cut(sorted(rows.items()), whole)

    if sum(rows.values()) <= MOST_ROWS_AT_ONCE:
        assert parts == []
        return
    cut_off = [step for part in parts for step in part]
    assert cut_off == sorted(set(cut_off), reverse=True)
    assert not whole & set(cut_off)
    for part in parts:
        assert len(part) == 1 or sum(rows[step] for step in part) <= ROWS_A_PART
    left = rows.keys() - set(cut_off)
    assert sum(rows[step] for step in left) <= ROWS_A_PART or left <= whole


def test_a_transaction_with_few_rows_is_not_asked_about():
    assert not may_be_cut(0)
    assert not may_be_cut(MOST_ROWS_AT_ONCE)
    assert may_be_cut(MOST_ROWS_AT_ONCE + 1)
    assert may_be_cut(None)  # nobody counted them


# --- what a rewind of many rows does -----------------------------------------------------------


@virtual_time
async def test_the_newest_rows_go_first_each_part_in_a_commit_of_its_own(small_parts: None) -> None:
    engine = await _written(6)
    mark = len(engine.timeline)

    rewound = await engine.rewind(2)

    assert engine.writes_since(mark) == [
        "write -> ROLLING_BACK",  # the rewind is durable before the first row goes
        *[REMOVAL] * 4,
        "write rewind>=2 -> ACTIVE",
    ]
    assert (rewound.status, rewound.next_step_id, rewound.generation) == (TransactionStatus.ACTIVE, 2, 2)
    assert await _state(engine, "kv/1", "kv/2", "kv/6", "kv/newest") == {"kv/1": 1, "kv/newest": 1}
    await engine.assert_memory_equals_store()


@virtual_time
async def test_with_few_rows_it_is_one_commit(small_parts: None) -> None:
    engine = await _written(2)
    mark = len(engine.timeline)

    await engine.rewind(1)

    assert engine.writes_since(mark) == ["write rewind>=1 -> ACTIVE"]


@virtual_time
async def test_others_commit_between_two_parts(small_parts: None) -> None:
    engine = await _written(6)
    large = engine.transaction_id
    other = await engine.begin()
    second_part = engine.memory.hold_write(engine.memory.write_count + 3)
    mark = len(engine.timeline)
    rewinding = asyncio.ensure_future(engine.rewind(1, transaction_id=large))
    await second_part.reached()

    step = asyncio.ensure_future(engine.step(1, "note", {"put": {"kv/other": 1}}, transaction_id=other))
    await idle()
    second_part.open()
    await asyncio.gather(rewinding, step)

    writes = engine.writes_since(mark)
    assert writes.index("write 1.1=COMPLETED! -> ACTIVE") == 3  # right behind the part that was under way
    assert writes[-1] == "write rewind>=1 -> ACTIVE"


@pytest.mark.parametrize("write", range(1, 8))
@virtual_time
async def test_a_crash_between_two_parts_is_gone_on_with(small_parts: None, write: int) -> None:
    engine = await _written(7)
    gate = engine.memory.hold_write(engine.memory.write_count + write)
    rewinding = asyncio.ensure_future(engine.rewind(2))
    await gate.reached()

    await engine.crash()
    await engine.coordinator.start()

    if write > 1:  # it was durable that there is a rewind
        assert rewinding.cancelled()
        record = await engine.record()
        assert (record.status, record.next_step_id) == (TransactionStatus.ACTIVE, 2)
        assert await _state(engine, "kv/1", "kv/2", "kv/7", "kv/newest") == {"kv/1": 1, "kv/newest": 1}
    else:
        assert (await engine.record()).next_step_id == 8
        assert await _state(engine, "kv/7", "kv/newest") == {"kv/7": 7, "kv/newest": 7}
    await engine.assert_memory_equals_store()


@virtual_time
async def test_undo_that_was_done_stays_on_record_until_the_rewind_is(small_parts: None) -> None:
    engine = await _written(3)
    await engine.step(4, "book", {"effect": "a", "put": {"kv/4": 4, "kv/newest": 4}})
    for step in (5, 6):
        await engine.step(step, "note", {"put": {f"kv/{step}": step, "kv/newest": step}})
    # The rewind, the undo, the parts of steps 6, 5 and 3: held before that of step 2.
    gate = engine.memory.hold_write(engine.memory.write_count + 6)
    rewinding = asyncio.ensure_future(engine.rewind(1))
    await gate.reached()

    [undo] = (await engine.rebuilt()).undo.values()
    assert undo.state is UndoState.DONE

    gate.open()
    assert (await rewinding).kept_effects == ()
    assert await _state(engine, "kv/4", "kv/newest") == {}
