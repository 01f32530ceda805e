"""Bearer tokens: their form, and what is kept of them.

A token is ``atx_ID_SECRET``. The id finds its record; the whole is compared by its SHA-256 in
constant time. The secret has 256 random bits, so a plain hash can't be turned back by guessing: the slow
hashes for passwords would only slow the server.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Protocol

from agenttx_server.access.identity import (
    ALL_TOOLS,
    CERTIFICATE_PREFIX,
    JWT_PREFIX,
    Identity,
    Role,
)
from agenttx_server.engine.visibility import DEFAULT_TENANT, owner_of

__all__ = [
    "LARGEST_PRINCIPAL_BYTES",
    "PREFIX",
    "NewToken",
    "TokenRecord",
    "TokenStore",
    "check_principal",
    "check_tools",
    "hash_of",
    "id_of",
    "make_token",
]

PREFIX = "atx"
LARGEST_PRINCIPAL_BYTES = 128
LARGEST_TOOL_PATTERNS = 64
LARGEST_PATTERN_BYTES = 128
_FORM = re.compile(r"atx_([0-9a-f]{16})_[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is kept of a token; times are microseconds UTC. The token itself is kept nowhere.

    ``principal`` is an owner: it names its tenant.
    """

    token_id: str
    principal: str
    roles: frozenset[Role]
    tools: tuple[str, ...]
    secret_hash: str
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    note: str = ""

    def is_of(self, token: str) -> bool:
        """Whether this is the record of a token, in time that doesn't tell how much of it is right."""
        return hmac.compare_digest(self.secret_hash, hash_of(token))

    def identity(self) -> Identity:
        """Return who presents the token."""
        return Identity(self.principal, self.roles, self.tools, self.expires_at)


class TokenStore(Protocol):
    """Where records of tokens are."""

    async def find_token(self, token_id: str) -> TokenRecord | None:
        """Return a token's record, also one that is revoked or expired. Raises StoreUnavailable."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made: the only time that it is seen. Its repr doesn't show it."""

    token: str
    record: TokenRecord

    def __repr__(self) -> str:
        return f"NewToken({self.record.token_id!r})"


def make_token(
    principal: str,
    roles: frozenset[Role],
    *,
    now: int,
    tenant: str = DEFAULT_TENANT,
    tools: tuple[str, ...] = ALL_TOOLS,
    expires_at: int | None = None,
    note: str = "",
) -> NewToken:
    """Make a token. Raises ValueError for a name, a pattern or roles that won't do."""
    check_principal(principal)
    check_tools(tools)
    if not roles:
        raise ValueError("a token needs a role")
    if expires_at is not None and expires_at <= now:
        raise ValueError("the token would have expired already")
    token_id = secrets.token_hex(8)
    token = f"{PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
    return NewToken(
        token,
        TokenRecord(
            token_id,
            owner_of(tenant, principal),
            roles,
            tools,
            hash_of(token),
            now,
            expires_at,
            None,
            note[:256],
        ),
    )


def id_of(token: str) -> str | None:
    """Return the id in a token, None for what has not the form of one."""
    match = _FORM.fullmatch(token)
    return match[1] if match else None


def hash_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def check_principal(principal: str) -> None:
    """Raise ValueError if a name can't be given to a token.

    Names of other kinds of credentials are not given away, so that a token can't stand for their owner nor they for its.
    """
    if not principal or len(principal.encode()) > LARGEST_PRINCIPAL_BYTES:
        raise ValueError(f"a principal's name has 1 to {LARGEST_PRINCIPAL_BYTES} bytes")
    if not principal.isascii() or not principal.isprintable() or " " in principal:
        raise ValueError("a principal's name is printable ASCII without spaces")
    if principal == "anonymous" or principal.startswith((CERTIFICATE_PREFIX, JWT_PREFIX, "@")):
        raise ValueError(f"the name {principal!r} is reserved")


def check_tools(patterns: tuple[str, ...]) -> None:
    """Raise ValueError for patterns of tools that won't do."""
    if not patterns or len(patterns) > LARGEST_TOOL_PATTERNS:
        raise ValueError(f"1 to {LARGEST_TOOL_PATTERNS} patterns of tools")
    for pattern in patterns:
        if not pattern or len(pattern.encode()) > LARGEST_PATTERN_BYTES or not pattern.isprintable():
            raise ValueError(f"a pattern of tools has 1 to {LARGEST_PATTERN_BYTES} printable characters")
