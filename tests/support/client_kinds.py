"""A fixture that makes clients of either kind, so that one test serves both: import `connect` where it is used."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.blocking import Blocking, BlockingLoop

from agenttx import AsyncClient, Client, RetryPolicy

__all__ = ["QUICK", "Connect", "connect"]

QUICK = RetryPolicy(overall_timeout_seconds=20, initial_backoff_seconds=0.001, max_backoff_seconds=0.05)
"""Retries that don't make a test wait."""

Connect = Callable[..., Any]


@pytest.fixture(params=["synchronous", "asynchronous"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Make clients as `connect(address, **settings)`; the asynchronous one is driven from outside its loop."""
    with ExitStack() as stack:
        if request.param == "synchronous":

            def make(address: str, **settings: Any) -> Any:
                return stack.enter_context(Client(address, **{"retry": QUICK, **settings}))

        else:
            loop = BlockingLoop()
            stack.callback(loop.close)

            def make(address: str, **settings: Any) -> Any:
                client = Blocking(loop, AsyncClient(address, **{"retry": QUICK, **settings}))
                stack.enter_context(client)
                return client

        yield make
