"""How the clients reach the server: TLS, Unix sockets, tokens, closing."""

import shutil
import subprocess
import threading
from pathlib import Path

import grpc
import pytest
from tests.support.stub_server import StubServer

from agenttx import ClientClosed, ConnectionFailed, Tls


def test_the_token_goes_with_every_call(server: StubServer, connect):
    client = connect(server.address, token="secret")
    with client.transaction(agent_id="a") as tx:
        tx.step("echo")
        with tx.stream() as steps:
            steps.step("echo")
    list(client.watch("tx-1"))

    assert len(server.metadata) >= 5
    assert {metadata.get("authorization") for metadata in server.metadata} == {"Bearer secret"}


def test_without_a_token_nothing_is_said(server: StubServer, connect, monkeypatch):
    monkeypatch.delenv("AGENTTX_TOKEN", raising=False)
    connect(server.address).health()
    assert "authorization" not in server.metadata[0]


def test_address_and_token_come_from_the_environment(server: StubServer, connect, monkeypatch):
    monkeypatch.setenv("AGENTTX_ADDRESS", server.address)
    monkeypatch.setenv("AGENTTX_TOKEN", "from-the-environment")
    client = connect(None)
    assert client.address == server.address
    client.health()
    assert server.metadata[0]["authorization"] == "Bearer from-the-environment"


def test_a_unix_socket_works(tmp_path: Path, connect):
    address = f"unix:{tmp_path / 'agenttx.sock'}"
    server = StubServer(address)
    try:
        with connect(address, token="secret").transaction(agent_id="a") as tx:
            tx.step("echo")
        assert server.metadata[-1]["authorization"] == "Bearer secret"
    finally:
        server.stop()


def test_a_proxy_in_the_environment_does_not_swallow_loopback(server: StubServer, connect, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert connect(server.address).health()


def test_after_close_every_call_says_so(server: StubServer, connect):
    client = connect(server.address)
    tx = client.transaction(agent_id="a").begin()
    client.close()
    client.close()

    for call in (
        lambda: client.get_transaction("tx-1"),
        lambda: tx.step("echo"),
        lambda: list(client.watch("tx-1")),
        client.connect,
    ):
        with pytest.raises(ClientClosed):
            call()


def test_closing_ends_what_is_under_way(server: StubServer, connect):
    gate = server.gates["slow"] = threading.Event()
    server.tools["slow"] = lambda: 1
    client = connect(server.address)
    tx = client.transaction(agent_id="a").begin()
    seen: list[BaseException] = []

    def run():
        try:
            tx.step("slow")
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not server.requests("ExecuteStep"):
        threading.Event().wait(0.005)
    client.close()
    thread.join(10)
    gate.set()

    assert [type(error) for error in seen] == [ClientClosed]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and certificates of it for a server named agenttx.test and for a client."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test CA", "-days", "2")
    for name in ("server", "client"):
        run("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text("subjectAltName=DNS:agenttx.test")
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.pem", "-days", "2", "-extfile", "names"),
        )
    return folder


@pytest.fixture
def tls_server(certificates: Path):
    credentials = grpc.ssl_server_credentials(
        [((certificates / "server.key").read_bytes(), (certificates / "server.pem").read_bytes())],
        root_certificates=(certificates / "ca.pem").read_bytes(),
        require_client_auth=True,
    )
    server = StubServer(credentials=credentials)
    yield server
    server.stop()


def test_tls_with_a_client_certificate_works(tls_server: StubServer, certificates: Path, connect):
    tls = Tls(
        ca=certificates / "ca.pem",
        certificate=(certificates / "client.pem").read_text(),
        private_key=(certificates / "client.key").read_bytes(),
        server_name="agenttx.test",
    )
    with connect(tls_server.address, tls=tls, token="secret").transaction(agent_id="a") as tx:
        tx.step("echo")
        with tx.stream() as steps:
            steps.step("echo")
    assert tls_server.metadata[-1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "broken", ["no client certificate", "another name", "another authority", "plain text"]
)
def test_tls_that_does_not_fit_is_a_failed_connection(
    tls_server: StubServer, certificates: Path, connect, broken
):
    pair = {"certificate": certificates / "client.pem", "private_key": certificates / "client.key"}
    settings = {"ca": certificates / "ca.pem", "server_name": "agenttx.test", **pair}
    if broken == "no client certificate":
        del settings["certificate"], settings["private_key"]
    elif broken == "another name":
        settings["server_name"] = "another.test"
    elif broken == "another authority":
        del settings["ca"]
    tls = None if broken == "plain text" else Tls(**settings)

    with pytest.raises(ConnectionFailed):
        connect(tls_server.address, tls=tls, connect_timeout=0.5).connect()
