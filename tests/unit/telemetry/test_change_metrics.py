"""What the engine did as metrics, in virtual time: each fact once, when it is durable, in its bucket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call
from tests.support.metrics_reading import Scrape, read
from tests.support.scripted_tools import ToolRun, fail_with, obey
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.records import EventType, UndoResolution
from agenttx_server.engine.requests import StepStatus
from agenttx_server.engine.transaction_writer import Rows
from agenttx_server.telemetry.bounded_labels import BoundedLabels
from agenttx_server.telemetry.change_metrics import ChangeMetrics
from agenttx_server.telemetry.exposition import Exposition

STEPS = "agenttx_step_duration_seconds"
REWINDS = "agenttx_rewind_duration_seconds"


def lasting(seconds: float) -> Any:
    async def behaviour(run: ToolRun) -> Any:
        await asyncio.sleep(seconds)
        return await obey(run)

    return behaviour


class AskAlways:
    """A policy by which a person is asked about every call."""

    def why(self, tool_name: str, arguments: Any) -> str:
        return "always"


def observed(**fields: Any) -> tuple[Engine, ChangeMetrics]:
    metrics = ChangeMetrics(lambda name: engine.tools.describe(name) is not None)
    engine = Engine(observer=metrics, **fields)
    return engine, metrics


def scraped(metrics: ChangeMetrics) -> Scrape:
    exposition = Exposition([metrics.read])
    exposition.read()
    return read(exposition.text("")[0].decode())


@virtual_time
async def test_a_step_is_counted_once_by_tool_class_and_outcome_with_the_time_it_took() -> None:
    engine, metrics = observed()
    engine.tools.next("book", lasting(2.0), lasting(0.03))
    await engine.begin()
    await engine.step(1, "book", {}, "r1")
    await engine.step(1, "book", {}, "r1")  # answered from the record
    await engine.step(2, "book", {}, "r2")
    await engine.step(3, "lookup", {"fail": "no such thing"})

    found = scraped(metrics)

    book = {"tool": "book", "effect_class": "COMPENSATABLE", "outcome": "completed"}
    buckets = {le: found.value(f"{STEPS}_bucket", le=le, **book) for le in ("0.025", "0.05", "1.0", "2.5")}
    assert buckets == {"0.025": 0, "0.05": 1, "1.0": 1, "2.5": 2}
    assert found.value(f"{STEPS}_sum", **book) == pytest.approx(2.03)
    failed = {"tool": "lookup", "effect_class": "READ_ONLY", "outcome": "failed"}
    assert found.value(f"{STEPS}_count", **failed) == 1
    assert found.total(f"{STEPS}_count") == 3
    assert found.total("agenttx_hints_total") == 1


@virtual_time
async def test_members_of_a_group_are_counted_each_with_its_own_time() -> None:
    engine, metrics = observed()
    engine.tools.next("lookup", lasting(0.2))
    await engine.begin()
    await engine.group(1, call("lookup"), call("note", {"put": {"kv/a": 1}}), call("book"))

    found = scraped(metrics)

    assert found.value(
        f"{STEPS}_sum", tool="lookup", effect_class="READ_ONLY", outcome="completed"
    ) == pytest.approx(0.2)
    assert found.labels_of(f"{STEPS}_count", "tool") == {"lookup", "note", "book"}
    assert found.total(f"{STEPS}_count", outcome="completed") == 3


@virtual_time
async def test_decisions_are_counted_by_strategy_with_what_they_cost_and_how_long_they_took() -> None:
    engine, metrics = observed()
    await engine.begin()
    await engine.step(1, "book", {"effect": "a"})
    await engine.step(2, "note", {})
    engine.tools.next("lookup", fail_with("KeyError: 'x'"))
    answer = await engine.step(3, "lookup", {})
    strategy = answer.strategy.value

    found = scraped(metrics)

    assert found.value("agenttx_decisions_total", strategy=strategy) == 1
    assert found.value(f"{REWINDS}_count", purpose="DECISION", strategy=strategy) == 1
    assert answer.decision is not None
    assert found.value("agenttx_rewind_steps_sum", strategy=strategy) == answer.decision.cost
    assert found.value("agenttx_hints_total", category="missing_key") == 1


@virtual_time
async def test_undo_that_fails_holds_the_rewind_and_its_time_counts_to_the_end() -> None:
    engine, metrics = observed()
    await engine.begin()
    await engine.step(1, "book", {"effect": "a"})
    await engine.step(2, "book", {"effect": "b"})
    engine.tools.break_undo("a")
    assert (await engine.rewind(1)).rollback_incomplete

    held = scraped(metrics)
    assert held.value("agenttx_rewinds_held_total") == 1
    assert held.value("agenttx_compensations_total", tool="book", outcome="done") == 1
    assert held.value("agenttx_compensations_total", tool="book", outcome="failed") == 1
    assert held.total(f"{REWINDS}_count") == 0

    await asyncio.sleep(100)
    await engine.resolve_undo(1, UndoResolution.KEPT)
    ended = scraped(metrics)
    assert ended.value("agenttx_compensations_total", tool="book", outcome="resolved") == 1
    rewind = {"purpose": "REWIND", "strategy": "MANUAL"}
    assert ended.value(f"{REWINDS}_bucket", le="60.0", **rewind) == 0
    assert ended.value(f"{REWINDS}_bucket", le="300.0", **rewind) == 1
    assert ended.value("agenttx_rewind_steps_sum", strategy="MANUAL") == 2
    assert ended.total("agenttx_decisions_total") == 0


@virtual_time
async def test_transactions_are_counted_as_they_begin_and_end_with_how_long_they_were_open() -> None:
    engine, metrics = observed()
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 1}, "stage": [["mail", 1], ["mail", 2]]})
    await asyncio.sleep(30)
    await engine.commit()
    await engine.begin()
    await engine.rollback()

    found = scraped(metrics)

    assert found.value("agenttx_transactions_begun_total") == 2
    ended = "agenttx_transaction_duration_seconds"
    assert found.value(f"{ended}_bucket", status="COMMITTED", le="15.0") == 0
    assert found.value(f"{ended}_bucket", status="COMMITTED", le="60.0") == 1
    assert found.value(f"{ended}_count", status="ROLLED_BACK") == 1
    assert found.value("agenttx_effects_total", channel="mail", outcome="delivered") == 2


@virtual_time
async def test_names_that_callers_make_up_share_one_label() -> None:
    engine, metrics = observed()
    for number in range(30):
        await engine.begin()
        await engine.step(1, f"made.up{number}", {})
        await engine.begin()
        await engine.report(1, f"my.own{number}", {}, output=1)

    found = scraped(metrics)

    assert found.labels_of(f"{STEPS}_count", "tool") == {"other"}
    assert found.value(f"{STEPS}_count", tool="other", effect_class="none", outcome="failed") == 30
    assert found.value(f"{STEPS}_count", tool="other", effect_class="READ_ONLY", outcome="completed") == 30


def test_a_flood_of_known_names_is_bounded_and_those_seen_first_keep_their_label() -> None:
    labels = BoundedLabels(3, lambda name: name.startswith("t"))
    assert [labels.of(name) for name in ("x", "t1", "t2", "x", "t3", "t4", "t1")] == [
        "other",
        "t1",
        "t2",
        "other",
        "t3",
        "other",
        "t1",
    ]


@virtual_time
async def test_questions_to_people_are_counted_and_their_time_is_the_steps() -> None:
    engine, metrics = observed(approval_policy=AskAlways())
    await engine.begin()
    for answer in ("approve", "reject"):
        assert (await engine.step(1, "pay", {})).status is StepStatus.AWAITING_APPROVAL
        await asyncio.sleep(7)
        await (engine.approve(1) if answer == "approve" else engine.reject(2))
        if answer == "approve":
            await engine.step(1, "pay", {})
            await engine.rewind(1, accept_irreversible=True)

    found = scraped(metrics)

    asked = {
        outcome: found.value("agenttx_approvals_total", outcome=outcome)
        for outcome in ("asked", "approved", "rejected")
    }
    assert asked == {"asked": 2, "approved": 1, "rejected": 1}
    paid = {"tool": "pay", "effect_class": "IRREVERSIBLE", "outcome": "completed"}
    assert found.value(f"{STEPS}_bucket", le="5.0", **paid) == 0
    assert found.value(f"{STEPS}_bucket", le="10.0", **paid) == 1


@virtual_time
async def test_calls_that_a_step_makes_are_counted_apart() -> None:
    async def calls(run: ToolRun) -> Any:
        return json.loads(await run.context.step("lookup", "{}"))

    engine, metrics = observed()
    engine.tools.next("upload", calls)
    await engine.begin()
    await engine.step(1, "upload", {})

    found = scraped(metrics)

    made = "agenttx_sub_step_duration_seconds_count"
    assert found.value(made, tool="lookup", effect_class="READ_ONLY", outcome="completed") == 1
    assert found.labels_of(f"{STEPS}_count", "tool") == {"upload"}


@virtual_time
async def test_what_was_not_written_is_not_counted() -> None:
    engine, metrics = observed()
    await engine.begin()
    engine.memory.fail_next_write(applied=False)
    with pytest.raises(EngineError):
        await engine.step(1, "lookup", {}, "r")
    assert scraped(metrics).total(f"{STEPS}_count") == 0

    await engine.step(1, "lookup", {}, "r")
    assert scraped(metrics).total(f"{STEPS}_count") == 1


@virtual_time
async def test_an_observer_that_fails_fails_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ChangeMetrics(lambda name: True)
    rows = Rows()
    rows.event(EventType.EFFECT_DELIVERED)  # without its channel
    engine, _ = observed()
    await engine.begin()

    metrics.change_written(await engine.record(), rows)

    assert "could not be counted" in caplog.text
