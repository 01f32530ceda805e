from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.client_kinds import Connect, connect
from tests.support.stub_server import StubServer

__all__ = ["client", "connect", "server"]


@pytest.fixture
def server() -> Iterator[StubServer]:
    stub = StubServer()
    yield stub
    stub.stop()


@pytest.fixture
def client(server: StubServer, connect: Connect) -> Any:
    return connect(server.address)
