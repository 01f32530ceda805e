"""Calls that a pipeline makes are counted as its owner's steps, and wait for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.support.pipeline_flows import plan_of
from tests.support.pipeline_process import pipeline_runs

from agenttx_server.pipelines.records import PipelineRunStatus
from agenttx_server.pipelines.run_coordinator import Row

WIDE = """
pipeline: wide
actions:
  - {name: chunk, tool: pipe.chunk, args: {n: "${source.n}"}}
  - {name: kept, tool: pipe.keep, dependencies: [chunk], args: {n: "${chunk.n}"}}
"""


async def test_each_call_waits_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "calls"
    log.touch()
    monkeypatch.setenv("PIPELINE_LOG", str(log))
    waiting: asyncio.Queue[tuple[str, asyncio.Future[None]]] = asyncio.Queue()

    def turn(owner: str) -> Awaitable[None]:
        comes: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.put_nowait((owner, comes))
        return comes

    async with (
        asyncio.timeout(60),
        pipeline_runs(f"sqlite:///{tmp_path / 'agenttx.db'}", step_turn=turn) as (runs, _),
    ):
        received = await runs.receive("alice", plan_of(WIDE).definition, [Row({"n": 2})])
        carrying = asyncio.ensure_future(runs.carry(received.run_id))
        turns = 0
        while not carrying.done():
            came = asyncio.ensure_future(waiting.get())
            await asyncio.wait({came, carrying}, return_when=asyncio.FIRST_COMPLETED)
            if came.done():
                owner, comes = came.result()
                assert owner == "alice"
                assert len(log.read_text().splitlines()) <= turns  # it was not called before
                turns += 1
                comes.set_result(None)
            came.cancel()
        assert (await carrying).status is PipelineRunStatus.COMPLETED
        assert turns == len(log.read_text().splitlines()) == 4
