"""Workers that are killed and stopped under agents at work break no promise; and what is told apart to judge that."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.crash.run import Options, run
from tests.crash.scratch import scratch_directory
from tests.crash.worker_rules import undo_recorded_twice, undo_that_counts
from tests.crash.world import Line, World

from agenttx.v1 import event_pb2


@pytest.mark.slow
async def test_workers_that_die_at_random_instants_break_no_promise():
    options = Options(seed="workers", kills=0, agents=8, workers=3, worker_kills=20)
    with scratch_directory() as directory:
        try:
            report = await run(options, directory)
        except BaseException as error:
            error.add_note(f"again: {options.command}")
            raise

    assert not report.findings.all, "\n".join([*report.findings.all[:20], f"again: {options.command}"])
    assert report.workers["killed"] == 20
    assert report.workers["stopped"]
    assert report.transactions["COMMITTED"]


def line(what: str, *, entry: str = "e", key: str = "k", seen: int | None = None, number: int = 0) -> Line:
    return Line(number, what, "tx", 1, 1, key, entry, pid=7, seen=seen)


def append(log: Path, *lines: Line) -> None:
    with log.open("ab") as file:
        file.writelines(written.text() for written in lines)


def happened(log: Path) -> list[str]:
    world = World(log, refuses_late=True)
    world.look()
    return [written.what for written in world.lines]


def test_an_effect_that_comes_after_its_undo_did_not_happen(tmp_path):
    log = tmp_path / "world.log"
    append(log, line("effect", key="other", seen=0))
    begun = log.stat().st_size
    append(log, line("undo"), line("effect", seen=begun))

    assert happened(log) == ["effect", "undo"]


def test_an_effect_of_a_call_that_began_before_a_person_called_it_off_did_not_happen(tmp_path):
    log = tmp_path / "world.log"
    world = World(log, refuses_late=True)

    assert not world.has_happened("e")
    append(log, line("effect", seen=0))
    assert not world.has_happened("e")
    assert world.refused == 1

    append(log, line("effect", seen=log.stat().st_size))  # said to be run again, and begun since
    assert world.has_happened("e")


def test_what_happened_before_it_was_called_off_stands(tmp_path):
    log = tmp_path / "world.log"
    append(log, line("effect", seen=0))

    assert World(log, refuses_late=True).has_happened("e")


def test_where_nothing_is_late_the_log_is_only_read(tmp_path):
    log = tmp_path / "world.log"
    append(log, line("effect"))
    before = log.read_bytes()

    assert World(log).has_happened("e")
    assert log.read_bytes() == before
    assert json.loads(before)["what"] == "effect"


def test_undo_that_changes_nothing_is_left_out_and_the_first_is_not():
    lines = [
        line("effect"),
        line("undo_failed"),
        line("undo", number=1),
        line("effect", key="k2"),
        line("undo", number=2),
        line("undo", key="k3", entry="kept"),
    ]

    counted = [(each.what, each.number) for each in undo_that_counts(lines, kept={"kept"})]

    assert counted == [("effect", 0), ("undo", 1), ("effect", 0)]


def test_undo_that_is_recorded_again_is_found():
    done = SimpleNamespace(step_id=3, attempt=1, type=event_pb2.EVENT_TYPE_UNDO_COMPLETED)
    failed = SimpleNamespace(step_id=3, attempt=1, type=event_pb2.EVENT_TYPE_UNDO_FAILED)

    assert undo_recorded_twice([failed, done]) == []
    assert undo_recorded_twice([failed, done, done]) == [(3, 1)]


def test_undo_is_recorded_again_where_its_attempt_acted_late():
    done = SimpleNamespace(step_id=3, attempt=1, type=event_pb2.EVENT_TYPE_UNDO_COMPLETED)
    late = SimpleNamespace(step_id=3, attempt=1, type=event_pb2.EVENT_TYPE_LATE_EFFECT_REPORTED)

    assert undo_recorded_twice([done, late, done]) == []
    assert undo_recorded_twice([done, late, done, done]) == [(3, 1)]
