"""TLS and clients' certificates over real connections."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from tests.support.certificates import Authority, Issued
from tests.support.every_method import METHODS, call

import agenttx
from agenttx.endpoint import Endpoint
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.command_line import main
from agenttx_server.main import CannotStart, open_server
from agenttx_server.settings import load_settings

REFLECTION = METHODS[-1]
RULES = """
[[certificate]]
name = "spiffe://test/agent/*"
roles = ["agent"]

[[certificate]]
name = "olga.test"
roles = ["operator"]
principal = "olga"

[[certificate]]
name = "amy.test"
roles = ["agent"]
principal = "olga"
tenant = "acme"
"""


@dataclass
class Place:
    """An authority, the server's certificate of it, and room for more."""

    directory: Path
    authority: Authority
    ca: Path
    server: Issued

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "data_dir": self.directory / "data",
            "listen": "127.0.0.1:0",
            "tls_certificate": self.server.certificate,
            "tls_key": self.server.key,
        } | more

    def tls(self, client: Issued | None = None) -> agenttx.Tls:
        if client is None:
            return agenttx.Tls(ca=self.ca)
        return agenttx.Tls(self.ca, client.certificate, client.key)

    def new_server_certificate(self, authority: Authority) -> Issued:
        return authority.issue(self.directory, "server", dns=["localhost"], addresses=["127.0.0.1"])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    authority = Authority()
    issued = authority.issue(tmp_path, "server", dns=["localhost"], addresses=["127.0.0.1"])
    return Place(tmp_path, authority, authority.write(tmp_path / "ca.pem"), issued)


@asynccontextmanager
async def serving(settings: dict[str, Any]) -> AsyncIterator[str]:
    async with open_server(load_settings(settings)) as server:
        yield server.address


async def transactions(address: str, tls: agenttx.Tls | bool | None, token: str | None = None) -> list[str]:
    """Begin a transaction and return all that are there for this caller."""
    async with agenttx.AsyncClient(address, tls=tls, token=token, connect_timeout=5) as client:
        async with client.transaction(agent_id="a") as tx:
            await tx.step("kv.put", key="a", value=1)
        return [one.transaction_id async for one in client.list_transactions()]


async def test_tls_is_served_to_who_knows_the_authority_and_plain_text_is_not(place: Place):
    async with serving(place.settings()) as address:
        assert len(await transactions(address, place.tls())) == 1
        with pytest.raises(agenttx.ConnectionFailed):
            async with agenttx.AsyncClient(address, connect_timeout=0.5) as client:
                await client.connect()
        stranger = agenttx.Tls(ca=Authority().write(place.directory / "other.pem"))
        with pytest.raises(agenttx.ConnectionFailed):
            async with agenttx.AsyncClient(address, tls=stranger, connect_timeout=0.5) as client:
                await client.connect()


async def test_reflection_is_off_under_tls_unless_asked_for(place: Place):
    credentials = grpc.ssl_channel_credentials(place.ca.read_bytes())
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    for more, code in (({}, grpc.StatusCode.UNIMPLEMENTED), ({"reflection": True}, grpc.StatusCode.OK)):
        async with (
            serving(place.settings(**more)) as address,
            grpc.aio.secure_channel(address, credentials) as channel,
        ):
            assert (await call(channel, REFLECTION, asked)).code is code


async def test_a_rotated_certificate_is_served_without_a_restart_and_a_bad_one_is_not(place: Place):
    second = Authority("second")
    second_ca = second.write(place.directory / "second.pem")
    async with serving(place.settings()) as address:
        assert await transactions(address, place.tls())
        place.server.certificate.write_text("nonsense")
        assert await transactions(address, place.tls())  # the old one
        place.new_server_certificate(second)
        assert await transactions(address, agenttx.Tls(ca=second_ca))
        with pytest.raises(agenttx.ConnectionFailed):
            async with agenttx.AsyncClient(address, tls=place.tls(), connect_timeout=0.5) as client:
                await client.connect()


async def test_a_client_is_known_by_its_certificates_name(place: Place):
    rules = place.directory / "certificates.toml"
    rules.write_text(RULES)
    issue = place.authority.issue
    one, two = (issue(place.directory, name, uris=[f"spiffe://test/agent/{name}"]) for name in ("one", "two"))
    olga = issue(place.directory, "olga", dns=["olga.test"])
    amy = issue(place.directory, "amy", dns=["amy.test"])
    nobody = issue(place.directory, "nobody", dns=["nobody.test"])
    forged = Authority().issue(place.directory, "forged", dns=["olga.test"])
    settings = place.settings(tls_client_ca=place.ca, certificates_file=rules)
    async with serving(settings) as address:
        (first,) = await transactions(address, place.tls(one))
        (second,) = await transactions(address, place.tls(two))
        assert first != second
        # A rule's tenant is its caller's, whatever the principal is called.
        (third,) = await transactions(address, place.tls(amy))
        assert third not in (first, second)
        async with agenttx.AsyncClient(address, tls=place.tls(amy)) as client:
            assert "fs.read" not in {one.name async for one in client.tools()}
            with pytest.raises(agenttx.NotFound):
                await client.get_transaction(first)
        async with agenttx.AsyncClient(address, tls=place.tls(olga)) as client:
            assert {t.transaction_id async for t in client.list_transactions()} == {first, second}
            with pytest.raises(agenttx.PermissionDenied):
                await client.transaction(agent_id="a").step("kv.get", key="a")
        with pytest.raises(agenttx.Unauthenticated):
            await transactions(address, place.tls(nobody))
        for refused in (None, forged):
            with pytest.raises(agenttx.ConnectionFailed):
                async with agenttx.AsyncClient(
                    address, tls=place.tls(refused), connect_timeout=0.5
                ) as client:
                    await client.connect()


@pytest.mark.parametrize("what", ["certificate", "rules", "half"])
async def test_a_server_that_can_not_speak_tls_as_told_does_not_start(place: Place, what: str):
    more: dict[str, Any] = {}
    if what == "certificate":
        shutil.copy(Authority().issue(place.directory, "x", dns=["x"]).key, place.server.key)
    elif what == "rules":
        more = {"tls_client_ca": place.ca, "certificates_file": place.directory / "none.toml"}
    else:
        place.server.key.write_text("")
    with pytest.raises(CannotStart):
        async with serving(place.settings(**more)):
            pass


async def test_commands_take_tls_from_variables(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    client = place.authority.issue(place.directory, "cli", dns=["cli.test"])
    async with serving(place.settings(tls_client_ca=place.ca)) as address:
        monkeypatch.setenv("AGENTTX_ADDRESS", address)
        assert await asyncio.to_thread(main, ["health", "--timeout", "1"]) != ExitCode.OK
        for variable, path in (
            ("CA", place.ca),
            ("CLIENT_CERTIFICATE", client.certificate),
            ("CLIENT_KEY", client.key),
        ):
            monkeypatch.setenv(f"AGENTTX_{variable}", str(path))
        assert await asyncio.to_thread(main, ["health"]) == ExitCode.OK
        assert await asyncio.to_thread(main, ["tx", "list", "--json"]) == ExitCode.OK
    capsys.readouterr()


def test_clients_take_tls_from_variables(place: Place):
    given = {"AGENTTX_ADDRESS": "agenttx.test:50051", "AGENTTX_TOKEN": "t", "AGENTTX_CA": str(place.ca)}
    given |= {
        "AGENTTX_CLIENT_CERTIFICATE": "c.pem",
        "AGENTTX_CLIENT_KEY": "k.pem",
        "AGENTTX_SERVER_NAME": "n",
    }
    endpoint = Endpoint.resolve(None, token=None, tls=None, environment=given)
    assert endpoint.address == "agenttx.test:50051"
    assert endpoint.tls == agenttx.Tls(str(place.ca), "c.pem", "k.pem", "n")
    assert Endpoint.resolve("x:1", token="", tls=False, environment=given).tls is None
    only = Endpoint.resolve("x:1", token="t", tls=None, environment={"AGENTTX_TLS": "true"})
    assert only.tls == agenttx.Tls()
    assert Endpoint.resolve("x:1", token="", tls=None, environment={}).tls is None
    with pytest.raises(agenttx.ConfigurationError, match="AGENTTX_TLS"):
        Endpoint.resolve("x:1", token="", tls=None, environment={"AGENTTX_TLS": "maybe"})
