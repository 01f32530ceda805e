"""What the HTTP client of the http.* tools lets through, against real servers, hostile ones among them."""

import asyncio
import gzip
import ipaddress
import shutil
import ssl
import subprocess
import tracemalloc

import pytest
from tests.support.scripted_http import answering, redirecting, scripted_http

from agenttx_server.engine.records import HintCategory
from agenttx_server.http_hosts import HostPattern, parse_networks
from agenttx_server.http_secrets import Secret, Secrets
from agenttx_server.tools.http.answers import AnswerLost, NotDone
from agenttx_server.tools.http.http_client import HttpClient, HttpLimits, resolve_name
from agenttx_server.tools.http.outgoing import Outgoing
from agenttx_server.tools.http.target import Target

LOCAL = ipaddress.ip_address("127.0.0.1")
SECRET = "sk-not-for-everybody"


class Names:
    """A resolver; each name has its addresses one lookup after another, the last one for good."""

    def __init__(self, **names):
        self.names = {name.replace("_", "."): list(answers) for name, answers in names.items()}
        self.asked = []

    async def __call__(self, host, port):
        self.asked.append(host)
        answers = self.names.get(host) or [["127.0.0.1"]]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ipaddress.ip_address(address) for address in found]


def client(names=None, secrets=(), **limits):
    given = {
        "allowed": tuple(map(HostPattern.parse, ("http://*:*", "https://*:*"))),
        "private_networks": parse_networks(["127.0.0.1/32"]),
        "timeout_seconds": 20.0,
    } | limits
    return HttpClient(HttpLimits(**given), Secrets(secrets), names or Names())


def get(url, **fields):
    return Outgoing("GET", Target.parse(url), **fields)


def post(url, body=b"{}", **fields):
    return Outgoing("POST", Target.parse(url), body=body, **fields)


async def test_a_request_is_sent_as_it_was_checked():
    async with scripted_http({"/a/../b": answering(201, b"hello", X_One="1")}) as service:
        answer = await client().send(post(service.url("/a/../b?q=%2F"), b"body", headers=(("X-A", "b"),)), 20)

    (request,) = service.requests
    assert (request.method, request.path, request.body) == ("POST", "/a/../b?q=%2F", b"body")
    assert request.headers["host"] == f"service.test:{service.port}"
    assert request.headers["x-a"] == "b"
    assert (answer.status, answer.body, answer.header("x-one")) == (201, b"hello", "1")


async def test_nothing_is_sent_to_a_host_that_is_not_allowed():
    names = Names()
    async with scripted_http({}) as service:
        with pytest.raises(NotDone) as refused:
            await client(names, allowed=(HostPattern.parse("api.test"),)).send(get(service.url()), 20)

    assert refused.value.category == HintCategory.PERMISSION_DENIED
    assert service.connections == 0
    assert names.asked == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.2"],
        ["169.254.169.254"],
        ["10.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.2"],
        ["127.0.0.1", "10.0.0.1"],
        [],
    ],
)
async def test_nothing_is_sent_to_a_name_that_has_an_address_which_is_not_public(addresses):
    async with scripted_http({}) as service:
        with pytest.raises(NotDone) as refused:
            await client(Names(service_test=[addresses])).send(get(service.url()), 20)

    assert refused.value.category == HintCategory.PERMISSION_DENIED
    assert service.connections == 0


async def test_the_connection_is_made_to_the_address_that_was_checked_whatever_the_name_becomes():
    names = Names(service_test=[["127.0.0.1"], ["127.0.0.2"]])
    async with scripted_http({"/": answering(200)}, host="0.0.0.0") as service:
        answer = await client(names).send(get(service.url()), 20)

    assert answer.status == 200
    assert names.asked == ["service.test"]


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2:{port}/secret", "http://[::1]:{port}/secret", "http://2130706434:{port}/secret",
        "http://0x7f000002:{port}/secret", "http://127.2:{port}/secret", "http://[::ffff:127.0.0.2]:{port}/secret",
        "http://169.254.169.254/latest/meta-data", "http://0.0.0.0:{port}/secret", "http://localhost.:{port}/secret",
        "http://inside.test:{port}/secret", "//127.0.0.2:{port}/secret", "http://a@127.0.0.2:{port}/secret",
        "http://127.0.0.2:{port}\\@service.test/secret", "file:///etc/passwd", "gopher://127.0.0.1:{port}/",
    ],
)  # fmt: skip
async def test_a_redirect_to_where_requests_must_not_go_is_not_followed(location):
    async def hop(request, writer):
        await redirecting(location.format(port=service.port))(request, writer)

    names = Names(inside_test=[["10.0.0.9"]])
    async with scripted_http({"/": hop, "/secret": answering(200, b"inside")}, host="0.0.0.0") as service:
        with pytest.raises(NotDone) as refused:
            await client(names).send(get(service.url()), 20)

    assert refused.value.category == HintCategory.PERMISSION_DENIED
    assert [request.path for request in service.requests] == ["/"]


async def test_a_redirect_to_a_host_that_is_not_allowed_is_not_followed():
    async def hop(request, writer):
        await redirecting(service.url("/", "other.test"))(request, writer)

    async with scripted_http({"/": hop}) as service:
        with pytest.raises(NotDone, match="redirects: "):
            await client(allowed=(HostPattern.parse("http://service.test:*"),)).send(get(service.url()), 20)
    assert service.connections == 1


async def test_redirects_are_followed_and_counted():
    async with scripted_http(
        {"/": redirecting("/a", 301), "/a": redirecting("b", 307), "/b": answering(200, b"there")}
    ) as service:
        answer = await client().send(get(service.url()), 20)
    assert (answer.body, answer.target.path) == (b"there", "/b")


async def test_a_redirect_loop_ends():
    async with scripted_http({"/": redirecting("/"), "/a": redirecting("/a", 308)}) as service:
        with pytest.raises(NotDone, match="more than 5 redirects"):
            await client().send(get(service.url()), 20)
        with pytest.raises(NotDone, match="more than 5 redirects"):
            await client().send(post(service.url("/a")), 20)
    assert len(service.requests) == 12


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_request_that_changes_something_is_not_turned_into_another_one(status):
    async with scripted_http({"/": redirecting("/a", status), "/a": answering(200)}) as service:
        answer = await client().send(post(service.url()), 20)
    assert answer.status == status
    assert len(service.requests) == 1


async def test_a_redirect_that_asks_for_the_same_request_elsewhere_gets_it():
    async with scripted_http({"/": redirecting("/a", 307), "/a": answering(201)}) as service:
        answer = await client().send(post(service.url(), b"body"), 20)
    assert answer.status == 201
    assert [(request.method, request.body) for request in service.requests] == [("POST", b"body")] * 2


HEADERS = (("Authorization", "Bearer x"), ("X-Api-Key", "y"), ("Accept", "text/plain"), ("Cookie", "z"))


@pytest.mark.parametrize(("host", "kept"), [("service.test", True), ("other.test", False)])
async def test_credentials_go_on_to_the_same_origin_only(host, kept):
    async def hop(request, writer):
        await redirecting(service.url("/a", host))(request, writer)

    async with scripted_http({"/": hop, "/a": answering(200)}) as service:
        await client().send(get(service.url(), headers=HEADERS), 20)

    last = service.requests[-1].headers
    assert last["accept"] == "text/plain"
    assert [name in last for name in ("authorization", "x-api-key", "cookie")] == [kept] * 3


async def test_a_secret_goes_to_no_other_host_by_redirect():
    async def hop(request, writer):
        await redirecting(service.url("/a", "other.test"), 307)(request, writer)

    async def echo(request, writer):
        await redirecting(service.url(f"/a?key={SECRET}", "other.test"))(request, writer)

    secrets = [Secret("KEY", SECRET, (HostPattern.parse("http://service.test:*"),))]
    async with scripted_http({"/": hop, "/echo": echo, "/a": answering(200)}) as service:
        with pytest.raises(NotDone, match="a secret in the body"):
            await client(secrets=secrets).send(post(service.url(), body_has_secret=True), 20)
        with pytest.raises(NotDone, match="would take a secret"):
            await client(secrets=secrets).send(get(service.url("/echo")), 20)
        headers = (("Accept", SECRET),)
        await client(secrets=secrets).send(
            get(service.url("/"), headers=headers, secret_headers=frozenset({"accept"})), 20
        )
    assert "accept" not in service.requests[-1].headers


# --- time and size ------------------------------------------------------------------------


async def endless(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def drip(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def drip_headers(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: b\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def never(_, writer):
    await asyncio.get_running_loop().create_future()


async def hang_up(_, writer):
    writer.close()


async def break_off(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")


async def flood_headers(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: " + b"b" * 1000 + b"\r\n")
        await writer.drain()


async def no_http(_, writer):
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n" * 10)


async def test_an_endless_body_is_cut_at_the_limit():
    async with scripted_http({"/": endless}) as service:
        answer = await client(response_bytes=100_000).send(get(service.url()), 20)
    assert answer.cut.category == HintCategory.RESOURCE_EXHAUSTED
    assert (answer.status, answer.body) == (200, b"")


async def test_a_body_of_the_limit_s_size_is_whole():
    async with scripted_http(
        {"/": answering(200, b"x" * 1000), "/more": answering(200, b"x" * 1001)}
    ) as service:
        sender = client(response_bytes=1000)
        assert (await sender.send(get(service.url()), 20)).cut is None
        assert (await sender.send(get(service.url("/more")), 20)).cut is not None


async def test_a_compressed_bomb_is_cut_before_it_fills_the_memory():
    handler = answering(200, gzip.compress(bytes(64 << 20), 9), Content_Encoding="gzip")
    async with scripted_http({"/": handler}) as service:
        sender = client(response_bytes=100_000)
        tracemalloc.start()
        try:
            answer = await sender.send(get(service.url()), 20)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert answer.cut.category == HintCategory.RESOURCE_EXHAUSTED
    assert peak < 8 << 20


async def test_a_body_within_several_encodings_is_not_decoded_at_all():
    inner = b"\x1f\x8b\x08" + bytes(6) + b"\x03" + b"\x00\x00\x00\xff\xff" * 100_000
    bomb = gzip.compress(gzip.compress(inner, 9), 9)
    handler = answering(200, bomb, Content_Encoding="gzip, identity, gzip, gzip")
    async with scripted_http({"/": handler}) as service:
        answer = await client().send(get(service.url()), 20)
    assert answer.cut.category == HintCategory.HTTP_SERVER_ERROR
    assert "more than once" in answer.cut.message


async def test_a_body_that_is_large_only_compressed_is_cut():
    blocks = b"\x1f\x8b\x08" + bytes(6) + b"\x03" + b"\x00\x00\x00\xff\xff" * 100_000
    async with scripted_http({"/": answering(200, blocks, Content_Encoding="gzip")}) as service:
        answer = await client(response_bytes=100_000).send(get(service.url()), 20)
    assert answer.cut.category == HintCategory.RESOURCE_EXHAUSTED


async def test_a_compressed_body_is_read():
    handler = answering(200, gzip.compress(b"hello"), Content_Encoding="gzip")
    bad = answering(200, b"hello", Content_Encoding="gzip")
    async with scripted_http({"/": handler, "/bad": bad}) as service:
        assert (await client().send(get(service.url()), 20)).body == b"hello"
        assert (await client().send(get(service.url("/bad")), 20)).cut is not None


async def test_a_body_that_drips_is_cut_when_the_time_is_up():
    async with scripted_http({"/": drip}) as service:
        answer = await client().send(get(service.url()), 0.5)
    assert answer.cut.category == HintCategory.TIMEOUT


@pytest.mark.parametrize("handler", [never, drip_headers])
async def test_an_answer_that_does_not_come_in_time_is_lost(handler):
    async with scripted_http({"/": handler}) as service:
        with pytest.raises(AnswerLost) as lost:
            await client().send(get(service.url()), 0.5)
    assert lost.value.category == HintCategory.TIMEOUT


@pytest.mark.parametrize("handler", [hang_up, flood_headers, no_http])
async def test_an_answer_that_is_none_is_lost(handler):
    async with scripted_http({"/": handler}) as service:
        with pytest.raises(AnswerLost) as lost:
            await client().send(post(service.url()), 20)
    assert lost.value.category == HintCategory.CONNECTION


async def test_a_body_that_breaks_off_leaves_the_status():
    async with scripted_http({"/": break_off}) as service:
        answer = await client().send(post(service.url()), 20)
    assert (answer.status, answer.cut.category) == (200, HintCategory.CONNECTION)


async def test_what_was_never_sent_has_not_happened():
    async with scripted_http({}) as service:
        url = service.url()
    with pytest.raises(NotDone) as refused:
        await client().send(post(url), 20)
    assert refused.value.category == HintCategory.CONNECTION

    async def nothing(host, port):
        raise OSError(-2, "Name or service not known")

    with pytest.raises(NotDone, match="has no address") as refused:
        await client(nothing).send(post(url), 20)
    assert refused.value.category == HintCategory.CONNECTION

    async def silent(host, port):
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NotDone) as refused:
        await client(silent).send(post(url), 0.2)
    assert refused.value.category == HintCategory.TIMEOUT


async def test_of_several_addresses_the_next_is_tried_where_one_refuses():
    names = Names(service_test=[["127.0.0.3", "127.0.0.1"]])
    networks = parse_networks(["127.0.0.0/8"])
    async with scripted_http({"/": answering(200)}) as service:
        answer = await client(names, private_networks=networks).send(get(service.url()), 20)
    assert answer.status == 200


async def test_proxies_of_the_environment_are_not_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with scripted_http({"/": answering(200)}) as service:
        assert (await client().send(get(service.url()), 20)).status == 200


async def test_names_are_resolved_by_the_system():
    assert LOCAL in await resolve_name("localhost", 80)
    with pytest.raises(OSError, match=r"."):
        await resolve_name("no-such-host.invalid", 80)


# --- TLS ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for service.test that is its own authority, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not there to make a certificate")
    directory = tmp_path_factory.mktemp("tls")
    names = ("-keyout", directory / "key.pem", "-out", directory / "cert.pem")
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=service.test",
    ]
    subprocess.run(
        [*command, "-addext", "subjectAltName=DNS:service.test", *names], check=True, capture_output=True
    )
    return directory / "cert.pem", directory / "key.pem"


@pytest.fixture
def tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.names = []
    context.sni_callback = lambda connection, name, _: context.names.append(name)
    return context


async def test_tls_is_checked_against_the_name_and_not_the_address(certificate, tls):
    async with scripted_http({"/": answering(200, b"safe")}, tls) as service:
        answer = await client(ca_file=certificate[0]).send(get(service.url()), 20)
        assert answer.body == b"safe"
        assert tls.names == ["service.test"]
        with pytest.raises(NotDone) as refused:
            await client(ca_file=certificate[0]).send(post(service.url(host="other.test")), 20)
        assert refused.value.category == HintCategory.CONNECTION
        assert "certificate" in refused.value.message.lower()
    assert len(service.requests) == 1


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls):
    async with scripted_http({"/": answering(200)}, tls) as service:
        with pytest.raises(NotDone) as refused:
            await client().send(post(service.url()), 20)
    assert refused.value.category == HintCategory.CONNECTION
    assert service.requests == []


async def test_a_redirect_from_https_to_http_is_not_followed(certificate, tls):
    async with (
        scripted_http({"/": answering(200)}) as plain,
        scripted_http({"/": redirecting(plain.url())}, tls) as service,
    ):
        with pytest.raises(NotDone, match="from https to http"):
            await client(ca_file=certificate[0]).send(get(service.url()), 20)
    assert plain.requests == []


def test_a_file_of_certificates_that_is_none_is_told(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ValueError, match=r"ca\.pem"):
        client(ca_file=tmp_path / "ca.pem")
    with pytest.raises(ValueError, match="No such file"):
        client(ca_file=tmp_path / "absent.pem")
