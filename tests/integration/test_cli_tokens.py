"""``agenttx token`` on a database that is being served, and before there is one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_server import running_server

import agenttx
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.command_line import main


@pytest.fixture
def token(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["token", *arguments, "--data-dir", str(tmp_path)])
        written = capsys.readouterr()
        return code, written.out, written.err

    return run


async def list_until_refused(client: agenttx.AsyncClient) -> None:
    while True:
        async for _ in client.list_transactions():
            pass


async def test_a_token_is_made_shown_once_used_listed_and_revoked(token: Any, tmp_path: Path):
    code, made, told = token("create", "ann", "--role", "agent", "--note", "the demo")
    assert code == ExitCode.OK
    assert "not shown again" in told
    secret = made.strip()
    token_id = secret.split("_")[1]
    async with running_server(data_dir=tmp_path, anonymous="never") as server:
        async with agenttx.AsyncClient(server.address, token=secret) as client:
            assert [one async for one in client.list_transactions()] == []
        code, late, _ = await asyncio.to_thread(
            token, "create", "bob", "--role", "auditor", "--expires", "never"
        )
        assert code == ExitCode.OK
        async with agenttx.AsyncClient(server.address, token=late.strip()) as client:
            assert [one async for one in client.list_transactions()] == []

        code, listed, _ = await asyncio.to_thread(token, "list")
        assert code == ExitCode.OK
        assert token_id in listed
        assert "the demo" in listed
        assert secret.split("_", 2)[2] not in listed
        code, out, _ = await asyncio.to_thread(token, "revoke", token_id)
        assert (code, out) == (ExitCode.OK, f"Token {token_id} of ann is revoked.\n")
        async with agenttx.AsyncClient(server.address, token=secret) as client:
            async with asyncio.timeout(20):
                with pytest.raises(agenttx.Unauthenticated):
                    await list_until_refused(client)
    assert secret.encode() not in (tmp_path / "agenttx.db").read_bytes()
    assert secret.split("_", 2)[2].encode() not in (tmp_path / "agenttx.db").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "ann", "--role", "root"), "'root' is no role"),
        (("create", "anonymous", "--role", "agent"), "reserved"),
        (("create", "ann", "--role", "agent", "--tool", "mail.*"), "give --role worker too"),
        (("create", "ann", "--role", "agent", "--expires", "soon"), "give a time such as"),
        (("create", "ann", "--role", "agent", "--expires", "99999d"), "give a time such as"),
    ],
)
def test_what_makes_no_sense_is_refused(token: Any, arguments: tuple[str, ...], says: str):
    code, out, told = token(*arguments)
    assert (code, out) == (ExitCode.USAGE, "")
    assert says in told


def test_a_token_that_is_not_there_is_said_so(token: Any):
    assert token("create", "ann", "--role", "agent")[0] == ExitCode.OK
    assert token("revoke", "0" * 16)[0] == ExitCode.REFUSED
    code, out, _ = token("list")
    assert (code, "ann" in out) == (ExitCode.OK, True)


def test_a_mistyped_directory_gets_no_database(token: Any, tmp_path: Path):
    for arguments in (("list",), ("revoke", "0" * 16)):
        code, _, told = token(*arguments)
        assert (code, "there is no database" in told) == (ExitCode.USAGE, True)
    assert list(tmp_path.iterdir()) == []
