"""Short runs: a server dies at every failpoint and at random instants under agents at work, and no promise is broken.

The same is done at length by `make test-crash`. A failure names what repeats it.
"""

from __future__ import annotations

import pytest
from tests.crash.databases import DATABASES
from tests.crash.run import POINTS, Options, Report, run
from tests.crash.scratch import scratch_directory

from agenttx_server import failpoints

HALF = len(POINTS) // 2


async def run_on(database: str, options: Options) -> Report:
    with DATABASES[database]() as entered, scratch_directory() as directory:
        try:
            report = await run(options, directory, entered)
        except BaseException as error:
            error.add_note(f"again: {options.command}")
            raise
    assert not report.findings.all, "\n".join([*report.findings.all[:20], f"again: {options.command}"])
    return report


@pytest.mark.slow
@pytest.mark.parametrize("points", [POINTS[:HALF], POINTS[HALF:]], ids=["first-half", "second-half"])
async def test_a_server_that_dies_at_any_point_breaks_no_promise(points: tuple[str, ...]):
    report = await run_on("sqlite", Options(seed="points", kills=len(points), agents=16, points=points))

    assert not report.missed
    assert report.died_at.keys() >= set(points)


def test_the_points_are_all_that_there_are():
    assert sorted(POINTS) == sorted(failpoints.NAMES)


@pytest.mark.slow
async def test_a_server_that_dies_at_random_instants_breaks_no_promise():
    report = await run_on("sqlite", Options(seed="instants", kills=8, agents=12, point_share=0))

    assert report.kills >= 8
    assert report.transactions["COMMITTED"]


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 3])
async def test_servers_that_share_a_database_take_over_from_those_that_die(servers: int):
    report = await run_on("postgresql", Options(seed="shared", kills=6, agents=12, servers=servers))

    assert report.kills >= 6
    assert report.transactions["COMMITTED"]
