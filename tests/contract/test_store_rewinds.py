"""What a rewind drops, keeps and marks."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import dataclasses

from tests.support.store_databases import reopen, store  # noqa: F401
from tests.support.store_records import Driver, attempt, effect, undo

from agenttx_server.engine.ports import (
    StateView,
    TransactionStore,
    WriteReceipt,
)
from agenttx_server.engine.records import (
    AttemptState,
    CommitCheck,
    CommitCheckKind,
    EffectState,
    Hint,
    HintCategory,
    TransactionStatus,
    UndoState,
)


async def test_a_rewind_drops_what_later_steps_left_and_keeps_the_rest(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    for step in (1, 2, 3):
        await driver.step(
            {"kv/a": str(step), f"kv/{step}": str(step)},
            reads={"kv/seen": 0},
            effects=[effect(f"e{step}", step, step)],
            undo=[undo(step, step)],
            checks=[CommitCheck(step, 1, CommitCheckKind.EXISTS, f"kv/{step}", "gone")],
        )
    await driver.rewind(2)
    stored = await store.load(driver.id)
    assert stored is not None
    assert [item.step_id for item in stored.attempts] == [1]
    assert stored.attempt_counts == {1: 1, 2: 1, 3: 1}
    assert [item.sequence for item in stored.undo] == [1]
    assert [item.effect_id for item in await store.list_effects(driver.id, frozenset())] == ["e1"]
    assert await store.read_state(driver.id, "kv/a", 99) == StateView("1", True, 0)
    assert await store.read_state(driver.id, "kv/2", 99) == StateView(None, False, 0)
    page = await store.list_attempts(driver.id, "", 10, 10_000)
    assert list(page.rewound) == [False, True, True]
    live = await store.list_attempts(driver.id, "", 10, 10_000, include_rewound=False)
    assert [item.step_id for item in live.attempts] == [1]
    assert await store.find_attempt(driver.id, "r-2-1") == (page.attempts[1], True)
    # The dropped checks would refuse this: their keys are gone.
    assert await driver.commit() == WriteReceipt(1, 2, 1)


async def test_the_failed_attempt_written_with_the_rewind_is_rewound_too(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step()
    failed = attempt(2, state=AttemptState.FAILED, output=None, generation=1)
    await driver.rewind(1, attempts=[failed])
    assert await store.find_attempt(driver.id, "r-2-1") == (failed, True)


async def test_attempts_after_a_rewind_are_live(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step()
    await driver.step()
    await driver.rewind(2)
    await driver.step()
    page = await store.list_attempts(driver.id, "", 10, 10_000)
    shown = [
        (item.step_id, item.attempt, rewound)
        for item, rewound in zip(page.attempts, page.rewound, strict=True)
    ]
    assert shown == [(1, 1, False), (2, 1, True), (2, 2, False)]
    stored = await store.load(driver.id)
    assert stored is not None
    assert [(item.step_id, item.attempt) for item in stored.attempts] == [(1, 1), (2, 2)]
    assert stored.attempt_counts == {1: 1, 2: 2}


async def test_an_abort_without_a_new_generation_rewinds_all(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step({"kv/a": "1"})
    ending = dataclasses.replace(driver.next_set(status=TransactionStatus.ROLLED_BACK), rewind_from=1)
    await store.write(ending)
    page = await store.list_attempts(driver.id, "", 10, 10_000)
    assert list(page.rewound) == [True]


async def test_a_rewind_leaves_failed_undo_actions_and_takes_upserts_after(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    hint = Hint("Hint: the refund failed", HintCategory.TIMEOUT, "timeout", ("order_id",))
    rows = [
        undo(1, 2, state=UndoState.DONE),
        undo(2, 2, state=UndoState.FAILED, hint=hint, attempts=3),
        undo(3, 2),
        undo(4, 1),
    ]
    await driver.write({"undo": rows})
    await driver.rewind(2, undo=[dataclasses.replace(rows[2], state=UndoState.FAILED)])
    stored = await store.load(driver.id)
    assert stored is not None
    assert stored.undo == [rows[1], dataclasses.replace(rows[2], state=UndoState.FAILED), rows[3]]


async def test_a_rewind_drops_staged_effects_only(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    rows = [effect(f"e{number}", 1, number, state=state) for number, state in enumerate(EffectState)]
    await driver.write({"effects": rows})
    await driver.rewind(1)
    assert await store.list_effects(driver.id, frozenset()) == [
        row for row in rows if row.state is not EffectState.STAGED
    ]


async def test_a_rewind_touches_its_own_transaction_only(store: TransactionStore) -> None:
    first, second = await Driver(store, "t-1").begin(), await Driver(store, "t-2").begin()
    await second.step({"kv/a": "2"}, effects=[effect("e", 1)], undo=[undo(1)])
    await first.step({"kv/a": "1"})
    await first.rewind(1)
    assert await store.read_state(second.id, "kv/a", 9) == StateView("2", True, 0)
    assert await store.count_touched(second.id, 1) == (1, ["kv/a"], 1)
    stored = await store.load(second.id)
    assert stored is not None
    assert (len(stored.attempts), len(stored.undo)) == (1, 1)


async def test_an_undo_action_that_is_written_again_has_its_new_arguments(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.write({"undo": [undo(1, 2), undo(2, 2)]})

    await driver.write({"undo": [dataclasses.replace(undo(1, 2), arguments='{"id":7}')]})

    stored = await store.load(driver.id)
    assert stored is not None
    assert stored.undo == [dataclasses.replace(undo(1, 2), arguments='{"id":7}'), undo(2, 2)]
