from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.blocking import Blocking, BlockingLoop
from tests.support.stub_server import StubServer

from agenttx import AsyncClient, Client, RetryPolicy

QUICK = RetryPolicy(overall_timeout_seconds=20, initial_backoff_seconds=0.001, max_backoff_seconds=0.05)

Connect = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[StubServer]:
    stub = StubServer()
    yield stub
    stub.stop()


@pytest.fixture(params=["synchronous", "asynchronous"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of either kind; the asynchronous one is driven from outside its loop."""
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


@pytest.fixture
def client(server: StubServer, connect: Connect) -> Any:
    return connect(server.address)
