"""The health service's watches."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2

from agenttx_server.api.health import Health
from agenttx_server.engine.errors import Unavailable

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Watcher:
    """A client that watches."""

    def __init__(self):
        self.told = []

    async def write(self, message):
        self.told.append(message.status)
        await asyncio.sleep(0)


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("service", ["", "readiness", "agenttx.v1.AgentTxService"])
async def test_a_watcher_is_told_each_change_once(service):
    health, watcher = Health(), Watcher()
    watching = asyncio.create_task(health.Watch(health_pb2.HealthCheckRequest(service=service), watcher))
    await settle()
    for serving in (False, True, True, False, True):
        health.set_serving(serving)
        await settle()
    health.close()
    with pytest.raises(Unavailable):
        await watching

    assert watcher.told == [NOT_SERVING, SERVING, NOT_SERVING, SERVING]


async def test_a_change_while_the_last_one_is_being_written_is_not_missed():
    health, watcher = Health(), Watcher()

    class Slow(Watcher):
        async def write(self, message):
            await super().write(message)
            if len(self.told) == 1:
                health.set_serving(True)

    watcher = Slow()
    watching = asyncio.create_task(health.Watch(health_pb2.HealthCheckRequest(), watcher))
    await settle()
    watching.cancel()

    assert watcher.told == [NOT_SERVING, SERVING]


async def test_a_server_that_drains_never_serves_again_and_still_lives():
    health = Health()
    health.set_serving(True)
    health.begin_drain()
    health.set_serving(True)

    statuses = (await health.List(None, None)).statuses
    assert {name: answer.status for name, answer in statuses.items()} == {
        "": NOT_SERVING,
        "agenttx.v1.AgentTxService": NOT_SERVING,
        "agenttx.v1.GraphService": NOT_SERVING,
        "agenttx.v1.PipelineService": NOT_SERVING,
        "agenttx.v1.LineageService": NOT_SERVING,
        "agenttx.v1.AuditService": NOT_SERVING,
        "agenttx.v1.ToolService": NOT_SERVING,
        "readiness": NOT_SERVING,
        "liveness": SERVING,
    }
