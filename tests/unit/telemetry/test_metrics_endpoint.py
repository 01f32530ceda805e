"""The metrics' HTTP: two pages, GET alone, and bounds on everything a client can do."""

import asyncio
import contextlib

import pytest
from tests.support.metrics_reading import exchange, get

from agenttx_server.listen_address import ListenAddress, MetricsAddressRefused
from agenttx_server.telemetry import metric_families as families
from agenttx_server.telemetry import metrics_endpoint
from agenttx_server.telemetry.exposition import Exposition
from agenttx_server.telemetry.metrics_endpoint import MetricsEndpoint

LOOPBACK = ListenAddress("127.0.0.1", 0)


class Counted:
    """A source that counts how often it is read."""

    def __init__(self):
        self.reads = 0

    def __call__(self, values):
        self.reads += 1
        values.number(families.QUEUE_DEPTH, self.reads, "reads")


def endpoint(source=lambda values: None, serving=lambda: True):
    return MetricsEndpoint(Exposition([source]), serving)


async def test_metrics_and_health_are_served_and_nothing_else():
    serving = [True]
    async with endpoint(Counted(), lambda: serving[0]).serve(LOOPBACK) as address:
        status, body = await get(address, "/metrics")
        assert (status, 'agenttx_queue_depth{queue="reads"} 1.0' in body) == (200, True)
        assert await get(address, "/healthz") == (200, "SERVING\n")
        serving[0] = False
        assert await get(address, "/healthz") == (503, "NOT_SERVING\n")
        assert (await get(address, "/"))[0] == 404
        assert (await get(address, "/metrics/x"))[0] == 404
        for method in ("POST", "HEAD", "DELETE"):
            assert (await get(address, "/metrics", method))[0] == 405


@pytest.mark.parametrize(
    "target",
    [
        "/metrics/../healthz",
        "/../../etc/passwd",
        "//metrics",
        "/%6detrics",
        "/METRICS",
        "/metrics;x",
        "http://test/metrics",
        "*",
        "/metrics\\..",
    ],
)
async def test_a_path_is_taken_as_it_is(target):
    async with endpoint().serve(LOOPBACK) as address:
        status, body = await get(address, target)
        assert (status, body) == (404, "there are /metrics and /healthz\n")


async def test_one_connection_is_one_request_and_what_follows_is_not_read():
    async with endpoint().serve(LOOPBACK) as address:
        head = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
        for more in (
            b"\r\n" + head + b"\r\n",
            b"content-length: 1000000\r\n\r\n",
            b"transfer-encoding: chunked\r\n\r\nffffffff\r\n",
            b"expect: 100-continue\r\ncontent-length: 5\r\n\r\n",
            b"connection: upgrade\r\nupgrade: h2c\r\n\r\n",
        ):
            answer = await exchange(address, head + more)
            assert answer.count(b"HTTP/1.1") == 1, answer
            assert answer.startswith(b"HTTP/1.1 200"), answer


async def test_the_form_is_the_one_that_is_asked_for():
    async with endpoint().serve(LOOPBACK) as address:
        _, body = await get(address, "/metrics", accept="application/openmetrics-text; version=1.0.0, */*")
        assert body.endswith("# EOF\n")
        _, body = await get(address, "/metrics")
        assert "# EOF" not in body


async def test_however_many_ask_metrics_are_read_once_a_second():
    source = Counted()
    async with endpoint(source).serve(LOOPBACK) as address:
        await asyncio.gather(*(get(address, "/metrics") for _ in range(10)))
        assert source.reads == 1


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: x\r\n" + b"x: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_request_or_too_long_is_refused(request_bytes):
    async with endpoint().serve(LOOPBACK) as address:
        answer = await exchange(address, request_bytes)
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
        assert (await get(address, "/healthz"))[0] == 200


async def test_a_client_that_says_nothing_is_cut_off_and_one_that_left_forgotten(monkeypatch):
    monkeypatch.setattr(metrics_endpoint, "EXCHANGE_SECONDS", 0.05)
    async with endpoint().serve(LOOPBACK) as address:
        assert await exchange(address, b"") == b""
        assert await exchange(address, b"GET /metrics HTT") == b""
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.transport.abort()
        assert (await get(address, "/healthz"))[0] == 200


async def test_connections_beyond_the_bound_are_closed_at_once(monkeypatch):
    monkeypatch.setattr(metrics_endpoint, "MAX_CONNECTIONS", 2)
    async with asyncio.timeout(20), endpoint().serve(LOOPBACK) as address:
        held = []
        for _ in range(2):
            held.append(await asyncio.open_connection(address.host, address.port))
        reader, writer = await asyncio.open_connection(address.host, address.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        for reader, writer in held:  # they still may ask
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_an_address_that_is_taken_is_refused_in_one_line():
    async with endpoint().serve(LOOPBACK) as address:
        with pytest.raises(MetricsAddressRefused, match=r"can't serve metrics on 127\.0\.0\.1"):
            async with endpoint().serve(address):
                pass
