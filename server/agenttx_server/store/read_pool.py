"""Reading: a few threads, each with a connection of its own, so that the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.store.storage_errors import engine_error

__all__ = ["ReadPool"]

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class ReadPool:
    """Runs queries, each in a snapshot of what was committed when it began."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine = engine
        self._local = threading.local()
        self._connections: list[Connection] = []
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="agenttx-reader")
        self._closed = False

    async def read(
        self,
        query: Callable[Concatenate[Connection, Arguments], Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """Run a query in a reader thread. Raises what it raises; errors of the database as StoreUnavailable."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, lambda: self._run(lambda c: query(c, *arguments, **named))
        )

    def close(self) -> None:
        """Wait for running queries and close the connections; blocks."""
        self._closed = True
        self._executor.shutdown(wait=True)
        for connection in self._connections:
            connection.close()

    def _run(self, query: Callable[[Connection], Result]) -> Result:
        try:
            connection = self._connection()
            connection.exec_driver_sql("BEGIN")
            try:
                return query(connection)
            finally:
                connection.rollback()
        except DBAPIError as error:
            self._forget()
            raise engine_error(error) from error

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._engine.connect()
            self._local.connection = connection
            self._connections.append(connection)
        return connection

    def _forget(self) -> None:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            self._connections.remove(connection)
            connection.invalidate()
            connection.close()
