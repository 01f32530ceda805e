"""Tokens: their form, what is kept of them, and how seldom the store is asked."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agenttx_server.access.authenticator import Authenticator, Credentials
from agenttx_server.access.errors import Unauthenticated
from agenttx_server.access.identity import ANONYMOUS, Identity, Role, roles_named
from agenttx_server.access.token_verifier import MOST_WAITING, TokenVerifier
from agenttx_server.access.tokens import TokenRecord, check_principal, hash_of, id_of, make_token
from agenttx_server.engine.errors import LimitExceeded
from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.engine.visibility import EVERYBODY

AGENT = frozenset({Role.AGENT})


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> MicrosecondsUtc:
        return MicrosecondsUtc(int(self.seconds * 1e6))

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


class Store:
    def __init__(self, *records: TokenRecord) -> None:
        self.records = {record.token_id: record for record in records}
        self.asked: list[str] = []
        self.down = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def find_token(self, token_id: str) -> TokenRecord | None:
        self.asked.append(token_id)
        await self.gate.wait()
        if self.down:
            raise StoreUnavailable("gone")
        return self.records.get(token_id)


def token_of(principal: str = "ann", **details: object) -> tuple[str, TokenRecord]:
    made = make_token(principal, AGENT, now=0, **details)  # type: ignore[arg-type]
    return made.token, made.record


def why(refused: pytest.ExceptionInfo[Unauthenticated]) -> str:
    return refused.value.metadata["why"]


def test_a_token_is_kept_as_a_hash_and_shown_by_nothing():
    made = make_token("ann", AGENT, now=0)
    secret = made.token.split("_", 2)[2]
    assert re.fullmatch(r"atx_[0-9a-f]{16}_[\w-]{43}", made.token)
    assert id_of(made.token) == made.record.token_id
    assert made.record.secret_hash == hash_of(made.token)
    assert secret not in repr(made) + repr(made.record)
    assert made.record.is_of(made.token)
    assert not made.record.is_of(made.token[:-1] + ("A" if made.token[-1] != "A" else "B"))


@pytest.mark.parametrize("name", ["", "a b", "anonymous", "cert:x", "jwt:x", "ä", "a\n", "x" * 129])
def test_names_that_are_reserved_or_look_like_others_are_refused(name: str):
    with pytest.raises(ValueError, match="name"):
        check_principal(name)


def test_roles_are_named():
    assert roles_named(["agent", "auditor"]) == {Role.AGENT, Role.AUDITOR}
    with pytest.raises(ValueError, match="'root' is no role"):
        roles_named(["root"])


def test_who_sees_what():
    operator = Identity("op", frozenset({Role.OPERATOR, Role.AGENT}))
    assert operator.scope(frozenset({Role.AGENT, Role.OPERATOR})) == EVERYBODY
    assert operator.scope(AGENT) == "op"  # what it makes is its own
    assert ANONYMOUS.scope(frozenset(Role)) == "anonymous"


def test_a_workers_tools_are_matched_whole_and_by_case():
    worker = Identity("w", frozenset({Role.WORKER}), ("mail.*", "crm.find"))
    assert worker.may_offer("mail.send")
    assert worker.may_offer("crm.find")
    assert not worker.may_offer("crm.find_all")
    assert not worker.may_offer("Mail.send")
    assert not worker.may_offer("email.send")


async def test_the_store_is_asked_once_until_the_record_is_old():
    token, record = token_of()
    store, clock = Store(record), Clock()
    verifier = TokenVerifier(store, clock)
    assert verifier.known(token) is None
    who = await asyncio.gather(*(verifier.verify(token) for _ in range(5)))
    assert {one.principal for one in who} == {"ann"}
    assert len(store.asked) == 1
    assert verifier.known(token) is not None
    clock.seconds += 2.1
    assert verifier.known(token) is None
    await verifier.verify(token)
    assert len(store.asked) == 2


async def test_a_revoked_token_is_noticed_within_seconds():
    token, record = token_of()
    store, clock = Store(record), Clock()
    verifier = TokenVerifier(store, clock)
    await verifier.verify(token)
    store.records[record.token_id] = TokenRecord(
        record.token_id, "ann", AGENT, ("*",), record.secret_hash, 0, None, 5
    )
    clock.seconds += 2.1
    with pytest.raises(Unauthenticated) as refused:
        await verifier.verify(token)
    assert why(refused) == "revoked"
    with pytest.raises(Unauthenticated):
        verifier.known(token)


async def test_an_expired_token_is_refused_at_its_moment_and_not_when_it_is_next_read():
    token, record = token_of(expires_at=1_001_000_000)
    clock = Clock()
    verifier = TokenVerifier(Store(record), clock)
    await verifier.verify(token)
    clock.seconds += 1.0
    with pytest.raises(Unauthenticated) as refused:
        verifier.known(token)
    assert why(refused) == "expired"


async def test_only_who_has_the_secret_learns_that_a_token_was_revoked():
    token, record = token_of()
    gone = TokenRecord(record.token_id, "ann", AGENT, ("*",), record.secret_hash, 0, None, 5)
    verifier = TokenVerifier(Store(gone), Clock())
    with pytest.raises(Unauthenticated) as refused:
        await verifier.verify(f"atx_{record.token_id}_" + "A" * 43)
    assert why(refused) == "invalid"
    with pytest.raises(Unauthenticated) as refused:
        await verifier.verify(token)
    assert why(refused) == "revoked"


@pytest.mark.parametrize(
    "text", ["", "x", "atx_1_2", "atx_" + "0" * 16 + "_" + "a" * 42, "atx_" + "G" * 16 + "_" + "a" * 43]
)
async def test_what_has_not_the_form_of_a_token_never_reaches_the_store(text: str):
    store = Store()
    with pytest.raises(Unauthenticated):
        await TokenVerifier(store, Clock()).verify(text)
    assert not store.asked


async def test_made_up_tokens_wait_in_a_bounded_crowd():
    store = Store()
    store.gate.clear()
    verifier = TokenVerifier(store, Clock())
    crowd = [asyncio.create_task(verifier.verify(token_of()[0])) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded):
        await verifier.verify(token_of()[0])
    assert len(store.asked) == 4
    store.gate.set()
    assert all(
        isinstance(one, Unauthenticated) for one in await asyncio.gather(*crowd, return_exceptions=True)
    )


async def test_a_database_that_is_down_lets_nobody_in():
    token, record = token_of()
    store = Store(record)
    store.down = True
    with pytest.raises(StoreUnavailable):
        await TokenVerifier(store, Clock()).verify(token)


@pytest.mark.parametrize(
    "headers",
    [["Basic x"], ["Bearer"], ["Bearer   "], ["Bearer a", "Bearer a"], [b"Bearer a"], ["x" * 9000]],
)
def test_other_authorization_headers_are_refused(headers: list[object]):
    with pytest.raises(Unauthenticated):
        Credentials.read(headers)


@given(st.lists(st.one_of(st.text(), st.binary(), st.text().map("Bearer ".__add__)), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
async def test_whatever_a_header_holds_is_refused_in_the_same_way(headers: list[object]):
    authenticator = Authenticator(TokenVerifier(Store(), Clock()), allows_anonymous=True)
    with pytest.raises(Unauthenticated) as refused:
        await authenticator.identify(Credentials.read(headers))
    assert why(refused) == "invalid"


def test_credentials_that_are_given_never_fall_back_to_none():
    open_to_all = Authenticator(None, allows_anonymous=True)
    assert open_to_all.known(Credentials.read([])) is ANONYMOUS
    with pytest.raises(Unauthenticated):
        open_to_all.known(Credentials.read(["Bearer nonsense"]))
    with pytest.raises(Unauthenticated) as refused:
        Authenticator(None, allows_anonymous=False).known(Credentials.read([]))
    assert why(refused) == "missing"
