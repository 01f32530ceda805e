"""Keeps a connection to every server, whatever comes and goes.

A server that says where it is reached is dialled there. Others are behind the addresses that the
worker was given: they are dialled until each server has been met, for where several share a port
nobody can choose which one answers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from agenttx.endpoint import Endpoint
from agenttx.errors import RpcError
from agenttx.hosting.server_link import OnServers, ServerLink, is_final
from agenttx.v1 import tool_pb2 as pb

__all__ = ["Fleet"]

_LOGGER = logging.getLogger("agenttx.worker")

FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 5.0

OpenLink = Callable[[Endpoint, OnServers], Awaitable[ServerLink]]


class Fleet:
    """The connections of one worker. ``homes`` are the addresses it was given."""

    def __init__(self, homes: Sequence[Endpoint], open_link: OpenLink) -> None:
        self._homes = tuple(homes)
        self._open = open_link
        self._links: dict[str, ServerLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: dict[str, str] = {}
        self._news = asyncio.Event()
        self._failure: RpcError | None = None
        self._is_stopping = False
        self._told = ""

    @property
    def server_ids(self) -> list[str]:
        """The servers that there is a connection to."""
        return sorted(self._links)

    async def keep(self) -> None:
        """Keep the connections until stopped. Raises RpcError for a refusal that is final."""
        backoff = FIRST_BACKOFF_SECONDS
        while not self._is_stopping:
            self._news.clear()
            missing = self._missing()
            if not missing:
                backoff = FIRST_BACKOFF_SECONDS
                await self._news.wait()
                continue
            met = await asyncio.gather(*(self._dial(endpoint) for endpoint in missing))
            if self._failure is not None:
                raise self._failure
            if any(met):
                backoff = FIRST_BACKOFF_SECONDS
                continue
            wait = backoff * (0.5 + random.random())  # noqa: S311 — jitter, no secret
            backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)
            await self._until_stopped(wait)

    def stop(self) -> None:
        """Say goodbye to every server and connect to none any more."""
        self._is_stopping = True
        self._news.set()
        for link in self._links.values():
            link.say_goodbye()

    async def ended(self) -> None:
        """Wait until no connection is left."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def cut(self) -> None:
        """End all connections at once."""
        for task in tuple(self._tasks):
            task.cancel()
        await self.ended()

    def _missing(self) -> list[Endpoint]:
        """The addresses to dial, each once."""
        if not self._links:
            return list(self._homes)
        missing = {server_id: at for server_id, at in self._servers.items() if server_id not in self._links}
        homes = self._homes if "" in missing.values() else ()
        addresses = dict.fromkeys([*(at for at in missing.values() if at), *(home.address for home in homes)])
        return [replace(self._homes[0], address=address) for address in addresses]

    async def _dial(self, endpoint: Endpoint) -> bool:
        """Connect once; return whether a server was met that there was no connection to."""
        try:
            link = await self._open(endpoint, self._learn)
        except RpcError as error:
            if is_final(error):
                self._failure = error
            elif str(error) != self._told:
                self._told = str(error)
                _LOGGER.warning("no connection to %s: %s; trying again", endpoint.address, error)
            return False
        is_new = link.server_id not in self._links
        if is_new:
            self._links[link.server_id] = link
            self._told = ""
            _LOGGER.info("connected to server %s at %s", link.server_id, endpoint.address)
        if not is_new or self._is_stopping:
            link.say_goodbye()
        task = asyncio.create_task(self._run(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return is_new

    async def _run(self, link: ServerLink) -> None:
        try:
            await link.run()
        except RpcError as error:
            _LOGGER.warning("the connection to server %s ended: %s", link.server_id, error)
        finally:
            if self._links.get(link.server_id) is link:
                del self._links[link.server_id]
                self._news.set()

    def _learn(self, servers: Sequence[pb.ServerAddress]) -> None:
        self._servers = {server.server_id: server.address for server in servers}
        self._news.set()

    async def _until_stopped(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self._is_stopping:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return
