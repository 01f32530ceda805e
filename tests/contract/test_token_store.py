"""Tokens in the database, while it is served and while it is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.store_databases import DATABASES

from agenttx_server.access.identity import Role
from agenttx_server.access.tokens import make_token
from agenttx_server.store import open_store, open_tokens

BOTH = frozenset({Role.AGENT, Role.WORKER})


@pytest.mark.parametrize("database", DATABASES)
async def test_tokens_made_and_revoked_beside_a_server_are_known_to_it(database: str, tmp_path: Path):
    with DATABASES[database](tmp_path) as address:
        first = make_token("ann", BOTH, now=1, tools=("mail.*", "ä"), expires_at=99, note="for tests")

        def add_first() -> None:
            with open_tokens(address) as tokens:  # makes the database
                tokens.add(first.record)

        await asyncio.to_thread(add_first)
        async with open_store(address) as store:
            assert await store.find_token(first.record.token_id) == first.record
            assert await store.find_token("0" * 16) is None
            second = make_token("bob", frozenset({Role.AUDITOR}), now=2)

            def change() -> None:
                with open_tokens(address) as tokens:
                    tokens.add(second.record)
                    revoked = tokens.revoke(first.record.token_id, 50)
                    assert revoked is not None
                    assert revoked.revoked_at == 50
                    assert tokens.revoke("0" * 16, 50) is None
                with open_tokens(address) as tokens:
                    again = tokens.revoke(first.record.token_id, 60)
                    assert again is not None
                    assert again.revoked_at == 50  # the first time stays
                    assert [one.principal for one in tokens.all()] == ["ann", "bob"]

            await asyncio.to_thread(change)
            found = await store.find_token(first.record.token_id)
            assert found is not None
            assert found.revoked_at == 50
            assert await store.find_token(second.record.token_id) == second.record
