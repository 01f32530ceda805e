"""Short runs in which servers stand still, clocks jump, the database stops and its disk is full: no promise is broken.

The same is done at length by `make test-crash CRASH_ARGS="--freezes 60 --outages 30 …"`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.crash.__main__ import FAULTS_TOLD
from tests.crash.databases import DATABASES, Database, small_disk
from tests.crash.faults import FAULTS
from tests.crash.run import Options, run
from tests.crash.scratch import scratch_directory
from tests.crash.warm_start import follow_clock, put_clock

from agenttx_server import system_ports

pytestmark = pytest.mark.slow


async def run_on(entered: AbstractContextManager[Database], options: Options) -> None:
    with entered as database, scratch_directory() as directory:
        report = await run(options, directory, database)
    assert not report.findings.all, "\n".join([*report.findings.all[:20], f"again: {options.command}"])
    assert report.faults == options.faults
    assert report.transactions["COMMITTED"]


def options(database: str, servers: int, faults: Mapping[str, int]) -> Options:
    return Options("faults", kills=0, agents=8, servers=servers, database=database, faults=faults)


async def test_servers_that_stand_still_and_a_database_that_stops_break_no_promise():
    faults = {"freezes": 1, "clock_jumps": 1, "outages": 1}

    await run_on(DATABASES["postgresql"](), options("postgresql", 2, faults))


async def test_a_full_disk_breaks_no_promise():
    with scratch_directory() as directory:
        try:
            with small_disk(directory):
                pass
        except (subprocess.CalledProcessError, FileNotFoundError):
            pytest.skip("no file system may be mounted here")

    await run_on(DATABASES["sqlite"](is_small=True), options("sqlite", 1, {"full_disks": 2}))


def test_a_disk_that_was_filled_takes_nothing_until_it_is_freed(tmp_path: Path):
    try:
        with small_disk(tmp_path) as disk:
            disk.fill()
            with pytest.raises(OSError, match="No space left"), (tmp_path / "more").open("wb") as file:
                file.write(bytes(1 << 16))
            disk.free()
            (tmp_path / "more").write_bytes(bytes(1 << 16))
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("no file system may be mounted here")
    assert not os.listdir(tmp_path)


def test_a_clock_can_be_put_forward_and_back_while_it_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(system_ports, "time", time)
    follow_clock(tmp_path / "clock")
    clock = system_ports.SystemClock()
    ahead = []
    for seconds in (0.0, 3600.0, -3600.0):
        put_clock(tmp_path / "clock", seconds)
        ahead.append(round(clock.now() / 1e6 - time.time(), -2))

    assert ahead == [0.0, 3600.0, -3600.0]


def test_each_fault_is_one_that_the_command_line_takes():
    assert set(FAULTS) == set(FAULTS_TOLD)
