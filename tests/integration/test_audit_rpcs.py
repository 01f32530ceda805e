"""The audit trail over real gRPC: each tenant's own entries to those who oversee it, and that the chains hold to all of them."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.integration.test_access import Tokens, tokens  # noqa: F401
from tests.support.running_server import running_server
from tests.support.store_databases import DATABASES

import agenttx
from agenttx_server.access.identity import Role
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.command_line import main
from agenttx_server.store import audit_reading


async def worked(client: agenttx.AsyncClient, times: int = 1) -> list[str]:
    done = []
    for _ in range(times):
        tx = client.transaction(agent_id="a")
        await tx.step("kv.put", key="a", value=1)
        await tx.commit()
        done.append(tx.transaction_id)
    return done


async def told(client: agenttx.AsyncClient, **asked: Any) -> list[tuple[str, str, str]]:
    return [(one.actor, one.action, one.subject) async for one in client.audit.entries(**asked)]


async def run(address: str, token: str, *arguments: str) -> tuple[int, str, str]:
    def call() -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AGENTTX_TOKEN", token)
            patch.setenv("COLUMNS", "200")  # whole ids, whatever terminal the tests run in
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(["audit", *arguments, "--address", address])
        # The server in this process logs to the same place.
        lines = [line for line in out.getvalue().splitlines() if " rpc " not in line]
        return code, "\n".join(lines), err.getvalue()

    return await asyncio.to_thread(call)


def change(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


@pytest.mark.parametrize("tokens", DATABASES, indirect=True)
async def test_who_oversees_a_tenant_reads_what_was_done_in_it_and_nothing_of_another(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_reading, "_LOOKED_AT", 7)  # many pages, some of them empty
    begun = datetime.now(UTC)
    oscar = tokens.make("oscar", Role.AUDITOR, tenant="acme")
    async with running_server(anonymous="never", database_url=tokens.url) as server:
        clients = [
            agenttx.AsyncClient(server.address, token=token)
            for token in (
                tokens.make("ann"),
                tokens.make("amy", tenant="acme"),
                tokens.make("olga", Role.OPERATOR),
                oscar,
            )
        ]
        ann, amy, olga, oscars = clients
        ours, theirs = await worked(ann, 6), await worked(amy, 2)
        ours += await worked(ann, 6)
        done = [
            (name, action, one)
            for name, ids in (("ann", ours), ("@acme/amy", theirs))
            for one in ids
            for action in ("transaction.begin", "transaction.commit")
        ]

        def of(entries: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
            assert len(set(entries)) == len(entries)
            return set(entries)

        found = of(await told(olga, action="transaction."))
        assert found == {one for one in done if one[0] == "ann"}
        assert found == of(await told(olga, action="transaction.", page_size=3))
        assert of(await told(oscars, action="transaction.")) == {one for one in done if one[0] != "ann"}
        # A token's entry is that of the tenant that it is of.
        assert {one[1] for one in await told(oscars)} == {
            "token.create",
            "transaction.begin",
            "transaction.commit",
        }
        assert len(await told(oscars, action="token.create")) == 2
        assert await told(oscars, owner="ann") == await told(oscars, actor="ann") == []
        assert await told(oscars, subject=ours[0]) == []
        assert {one[1] for one in await told(oscars, subject=theirs[0], actor="@acme/amy")} == {
            "transaction.begin",
            "transaction.commit",
        }
        assert await told(oscars, until=begun - timedelta(days=1)) == []
        assert len(await told(oscars, since=begun, action="transaction.commit")) == 2
        with pytest.raises(agenttx.PermissionDenied):
            await told(ann)
        with pytest.raises(agenttx.InvalidArgument) as long:
            await told(olga, actor="x" * 513)
        assert "actor" in str(long.value)

        verified = await oscars.audit.verify()
        assert verified.broken == ()
        assert verified.entries == 4 + 2 * 14
        assert sum(int(head.split(":")[1]) for head in verified.heads) == verified.entries
        assert (await olga.audit.verify(verified.heads)).broken == ()
        code, out, _ = await run(server.address, oscar, "verify", "--remote", "--json")
        assert (code, json.loads(out)["heads"]) == (ExitCode.OK, list(verified.heads))
        code, out, _ = await run(server.address, oscar, "export", "--remote")
        assert code == ExitCode.OK
        lines = [json.loads(line) for line in out.splitlines()]
        assert {line["owner"].partition("/")[0] for line in lines} == {"@acme"}
        code, out, _ = await run(server.address, oscar, "list", "--action", "transaction.", "--since", "1d")
        assert code == ExitCode.OK
        assert theirs[0] in out
        assert ours[0] not in out

        # Bent behind everybody's back: all who ask are told where, and the chains that are whole stay so.
        first, *_ = [one async for one in olga.audit.entries(subject=ours[3])]
        chain, sequence = first.chain, first.sequence
        place = f"WHERE chain = {chain} AND sequence = {sequence}"
        change(tokens.url, f"UPDATE audit_log SET actor = 'eve' {place}")
        bent = await oscars.audit.verify(verified.heads)
        assert [(one.chain, one.sequence) for one in bent.broken] == [(chain, sequence)]
        assert {head.split(":")[0] for head in bent.heads} >= {
            head.split(":")[0] for head in verified.heads if head.split(":")[0] != str(chain)
        }
        change(tokens.url, f"UPDATE audit_log SET actor = 'ann' {place}")
        assert (await oscars.audit.verify(verified.heads)).broken == ()
        # Cut off behind: a head that was noted shows it, whichever page it would have been in.
        change(tokens.url, f"DELETE FROM audit_log WHERE chain = {chain} AND sequence >= {sequence}")
        assert (await oscars.audit.verify()).broken == ()
        (cut,) = (await oscars.audit.verify(verified.heads)).broken
        assert (cut.chain, cut.sequence) == (chain, sequence)
        code, _, err = await run(
            server.address, oscar, "verify", "--remote", *(f"--head={one}" for one in verified.heads)
        )
        assert code == ExitCode.REFUSED
        assert f"chain {chain} is broken at entry {sequence}" in err
        for client in clients:
            await client.close()


async def test_page_tokens_are_good_for_what_they_were_given_for_and_show_nothing_more(tokens: Tokens):
    from agenttx.v1 import audit_pb2, audit_pb2_grpc

    async with running_server(anonymous="never", database_url=tokens.url) as server:
        stub = audit_pb2_grpc.AuditServiceStub(server.channel)
        olga, oscar = tokens.make("olga", Role.OPERATOR), tokens.make("oscar", Role.AUDITOR, tenant="acme")

        async def listed(token: str, **asked: Any) -> audit_pb2.ListAuditEntriesResponse:
            request = audit_pb2.ListAuditEntriesRequest(page_size=1, **asked)
            metadata = (("authorization", f"Bearer {token}"),)
            answer: audit_pb2.ListAuditEntriesResponse = await stub.ListAuditEntries(
                request, metadata=metadata
            )
            return answer

        first = await listed(olga)
        assert [entry.owner for entry in first.entries] == ["olga"]
        assert [entry.owner for entry in (await listed(oscar, page_token=first.next_page_token)).entries] == [
            "@acme/oscar"
        ]
        for token, asked in (
            (olga, {"page_token": first.next_page_token, "actor": "x"}),
            (olga, {"page_token": "x"}),
            (olga, {"page_token": first.next_page_token + "="}),
        ):
            with pytest.raises(Exception, match="page_token"):
                await listed(token, **asked)
        metadata = (("authorization", f"Bearer {olga}"),)
        for bad in (
            {"page_token": first.next_page_token},
            {"noted_heads": ["x"]},
            {"noted_heads": ["0:1:" + "a" * 64] * 101},
            {"noted_heads": [f"{1 << 70}:1:" + "a" * 64]},
            {"noted_heads": ["0:" + "9" * 5000 + ":" + "a" * 64]},
        ):
            with pytest.raises(Exception, match=r"INVALID_ARGUMENT"):
                await stub.VerifyAuditTrail(
                    audit_pb2.VerifyAuditTrailRequest(**bad),
                    metadata=metadata,  # type: ignore[arg-type]
                )


async def test_who_needs_no_credentials_reads_what_is_the_anonymous_ones():
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        done = await worked(client)
        assert [one[1:] for one in await told(client)] == [
            ("transaction.begin", done[0]),
            ("transaction.commit", done[0]),
        ]
