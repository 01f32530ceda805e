"""Which servers a worker connects to, with links that are made up, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.support.virtual_time import virtual_time

from agenttx.endpoint import Endpoint
from agenttx.errors import PreconditionFailed, RpcError, Unauthenticated, Unavailable
from agenttx.hosting.fleet import Fleet
from agenttx.v1 import tool_pb2 as pb

HOME = Endpoint("127.0.0.1:1", is_local=True, tls=None)


class Link:
    """A connection to a server that lives until it is ended."""

    def __init__(self, server_id: str) -> None:
        self.server_id = server_id
        self.said_goodbye = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        await self._ended

    def say_goodbye(self) -> None:
        self.said_goodbye = True
        self.end()

    def end(self, error: Exception | None = None) -> None:
        if not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)


class Servers:
    """The servers behind addresses; whoever dials one meets the next of those there."""

    def __init__(self, **behind: list[str | RpcError]) -> None:
        self.behind = {address.replace("_", ":"): list(met) for address, met in behind.items()}
        self.listed: list[tuple[str, str]] = []
        self.dialled: list[str] = []
        self.links: list[Link] = []
        self.fleet = Fleet([HOME], self.open)
        self.learn: Callable[[Any], None] = lambda servers: None

    async def open(self, endpoint: Endpoint, learn: Callable[[Any], None]) -> Any:
        self.dialled.append(endpoint.address)
        self.learn = learn
        met = self.behind[endpoint.address]
        first = met.pop(0)
        if not met:
            met.append(first)
        if isinstance(first, RpcError):
            raise first
        link = Link(first)
        self.links.append(link)
        self.tell(*(self.listed or [(first, "")]))
        return link

    def tell(self, *servers: tuple[str, str]) -> None:
        self.listed = list(servers)
        self.learn([pb.ServerAddress(server_id=name, address=address) for name, address in servers])


@virtual_time
async def test_a_server_that_is_away_is_dialled_again_with_longer_and_longer_waits() -> None:
    servers = Servers(**{"127.0.0.1_1": [Unavailable("refused", code=grpc.StatusCode.UNAVAILABLE)]})
    keeping = asyncio.create_task(servers.fleet.keep())
    await asyncio.sleep(60)

    assert 10 <= len(servers.dialled) <= 40
    servers.fleet.stop()
    await keeping


@virtual_time
async def test_servers_of_one_port_are_dialled_until_all_are_met() -> None:
    servers = Servers(**{"127.0.0.1_1": ["a", "a", "a", "b"]})
    servers.listed = [("a", ""), ("b", "")]
    keeping = asyncio.create_task(servers.fleet.keep())
    await asyncio.sleep(10)

    assert servers.fleet.server_ids == ["a", "b"]
    assert [link.said_goodbye for link in servers.links] == [False, True, True, False]
    servers.fleet.stop()
    await keeping
    await servers.fleet.ended()
    assert servers.fleet.server_ids == []


@virtual_time
async def test_a_server_that_says_where_it_is_is_dialled_there() -> None:
    servers = Servers(**{"127.0.0.1_1": ["a"], "10.0.0.2_1": ["b"]})
    servers.listed = [("a", "127.0.0.1:1"), ("b", "10.0.0.2:1")]
    keeping = asyncio.create_task(servers.fleet.keep())
    await asyncio.sleep(10)

    assert servers.fleet.server_ids == ["a", "b"]
    assert servers.dialled == ["127.0.0.1:1", "10.0.0.2:1"]
    servers.fleet.stop()
    await keeping


@virtual_time
async def test_every_address_that_it_was_given_is_dialled() -> None:
    servers = Servers(**{"127.0.0.1_1": ["a"], "10.0.0.2_1": ["b"]})
    servers.listed = [("a", ""), ("b", "")]
    servers.fleet = Fleet([HOME, replace(HOME, address="10.0.0.2:1")], servers.open)
    keeping = asyncio.create_task(servers.fleet.keep())
    await asyncio.sleep(1)

    assert servers.fleet.server_ids == ["a", "b"]
    assert len(servers.dialled) == 2
    servers.fleet.stop()
    await keeping


@virtual_time
async def test_a_server_that_comes_later_is_met_and_one_that_goes_is_let_go() -> None:
    servers = Servers(**{"127.0.0.1_1": ["a", "b"]})
    keeping = asyncio.create_task(servers.fleet.keep())
    await asyncio.sleep(1)
    assert servers.fleet.server_ids == ["a"]
    servers.tell(("a", ""), ("b", ""))
    await asyncio.sleep(10)
    assert servers.fleet.server_ids == ["a", "b"]
    servers.tell(("b", ""))
    servers.links[0].end(Unavailable("gone", code=grpc.StatusCode.UNAVAILABLE))
    await asyncio.sleep(10)

    assert servers.fleet.server_ids == ["b"]
    servers.fleet.stop()
    await keeping


@virtual_time
async def test_a_connection_that_breaks_is_made_again() -> None:
    servers = Servers(**{"127.0.0.1_1": ["a"]})
    keeping = asyncio.create_task(servers.fleet.keep())
    await asyncio.sleep(1)
    servers.links[0].end(Unavailable("broke", code=grpc.StatusCode.UNAVAILABLE))
    await asyncio.sleep(1)

    assert servers.fleet.server_ids == ["a"]
    assert len(servers.links) == 2
    servers.fleet.stop()
    await keeping


@virtual_time
@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (Unauthenticated("who?", code=grpc.StatusCode.UNAUTHENTICATED), True),
        (
            PreconditionFailed(
                "taken",
                code=grpc.StatusCode.FAILED_PRECONDITION,
                reason="TOOL_CONFLICT",
                metadata={"offered_by": "server"},
            ),
            True,
        ),
        (
            PreconditionFailed(
                "another version",
                code=grpc.StatusCode.FAILED_PRECONDITION,
                reason="TOOL_CONFLICT",
                metadata={"offered_by": "worker"},
            ),
            False,
        ),
    ],
)
async def test_a_refusal_that_stays_one_ends_the_worker(error: RpcError, is_final: bool) -> None:
    servers = Servers(**{"127.0.0.1_1": [error, "a"]})
    keeping = asyncio.create_task(servers.fleet.keep())
    await asyncio.sleep(5)

    assert keeping.done() is is_final
    if is_final:
        assert keeping.exception() is error
    else:
        assert servers.fleet.server_ids == ["a"]
        servers.fleet.stop()
        await keeping
