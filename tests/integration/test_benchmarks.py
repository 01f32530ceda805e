"""Every topic of the benchmarks runs, and what it finds can be written down and drawn. Figures are not judged here."""

from __future__ import annotations

import asyncio
import cProfile
import json
import math
import pstats
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from benchmarks import databases, render, run, step_cost
from benchmarks.measuring import BUDGETS
from tests.support.postgres_cluster import shared_cluster

TINY = BUDGETS["tiny"]
ON_POSTGRESQL_TOO = {"limits"}


@pytest.mark.slow
@pytest.mark.parametrize("topic", run.TOPICS)
def test_a_topic_runs_and_what_it_finds_can_be_shown(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    missing = [module for module in run.NEEDED.get(topic, ()) if find_spec(module) is None]
    if missing:
        pytest.skip(f"the extra {topic} is not installed")
    monkeypatch.setenv("AGENTTX_BENCH_DIR", str(tmp_path))
    monkeypatch.delenv(databases.VARIABLE, raising=False)
    if topic in ON_POSTGRESQL_TOO:
        monkeypatch.setenv(databases.VARIABLE, shared_cluster().address("postgres"))

    findings = import_module(f"benchmarks.{topic}").measure(TINY)

    found = json.loads(json.dumps(findings.as_json()))
    assert found["topic"] == topic
    assert found["tables"]
    for table in found["tables"]:
        assert table["rows"], table["title"]
        for row in table["rows"]:
            assert len(row) == len(table["columns"])
            for summary in (cell for cell in row if isinstance(cell, dict)):
                assert summary["least"] <= summary["median"] <= summary["greatest"]
    page = render.page(results_of([found]))
    assert f"## {found['title']}" in page
    for plot in found["plots"]:
        assert all(
            len(point) == 4 and all(map(math.isfinite, point))
            for one in plot["series"]
            for point in one["points"]
        )
        assert render.line_chart(plot).startswith("<svg")


@pytest.mark.parametrize("way", ["", "stream"])
def test_what_a_step_costs_is_measured_on_each_way_or_profiled_on_one(way: str, tmp_path: Path):
    """It takes the server apart by hand, which a change of the server breaks unseen."""
    profile = cProfile.Profile() if way else None
    found = asyncio.run(step_cost._in_process(tmp_path, 2, 3, 1, profile, way))
    if profile is None:
        assert sorted(found) == ["coordinator", "handler", "stream"]
        assert all(costs["event_loop_us"]["median"] > 0 for costs in found.values())
    else:
        assert any(name == "_answer" for _, _, name in pstats.Stats(profile).stats)  # type: ignore[attr-defined]


def results_of(topics: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runner would write of topics' findings."""
    return {
        "date": "2026-01-01",
        "machine": {"cpus": 2},
        "budget": {"name": "tiny", "repetitions": 1, "seconds": 0.02},
        "topics": [{"seconds": 1.0} | found for found in topics],
        "failed": [],
        "left_out": [],
        "seconds": 1.0,
    }
