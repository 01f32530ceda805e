"""Turns JWTs (RFC 7519, RFC 8725) of one issuer into identities.

What is pinned is not the token's to choose: the algorithms, all of them asymmetric, the issuer and the audience. The key is the issuer's
own of the id that the token names; a key or an address in the token's header is never used. A key that names its algorithm is for that one
alone, another for each of the pinned ones that are for keys of its type and curve.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from agenttx_server.access.errors import Unauthenticated
from agenttx_server.access.identity import ALL_TOOLS, JWT_PREFIX, Identity, Role
from agenttx_server.access.jwt_keys import IssuerKey, JwtKeys
from agenttx_server.access.tokens import LARGEST_PRINCIPAL_BYTES, check_tools
from agenttx_server.engine.ports import Clock
from agenttx_server.engine.visibility import DEFAULT_TENANT, owner_of

__all__ = ["JwtRules", "JwtVerifier"]

LEEWAY_SECONDS = 30
TOOLS_CLAIM = "agenttx_tools"
MOST_KEPT = 4096
_REQUIRED = ["iss", "sub", "aud", "exp"]
# Beside the library's own: what Python says of numbers without end and of JSON nested without end.
_MALFORMED = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
_ROLES = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True)
class JwtRules:
    """What a token must say. ``roles_claim`` names the claim with the roles, ``tenant_claim`` the one with the tenant."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    roles_claim: str = "agenttx_roles"
    tenant_claim: str = "agenttx_tenant"


class JwtVerifier:
    """Checks JWTs; those that were found good are known until they expire or the issuer's keys change."""

    def __init__(self, rules: JwtRules, keys: JwtKeys, clock: Clock) -> None:
        self._rules = rules
        self._keys = keys
        self._clock = clock
        self._good: OrderedDict[str, Identity] = OrderedDict()
        self._version = keys.version

    def known(self, token: str) -> Identity | None:
        """Return who presents a token if it was found good before; None if it must be checked.

        Raises Unauthenticated: it has expired.
        """
        if self._keys.is_old() or self._keys.version != self._version:
            return None
        identity = self._good.get(token)
        if identity is not None:
            self._check_expiry(identity)
        return identity

    async def verify(self, token: str) -> Identity:
        """Return who presents a token. Raises Unauthenticated, JwtKeysUnavailable."""
        try:
            header = jwt.get_unverified_header(token)
        except _MALFORMED:
            raise _invalid() from None
        key_id, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in self._rules.algorithms or not isinstance(key_id, str) or "crit" in header:
            raise _invalid()
        key = await self._keys.find(key_id)
        if self._keys.version != self._version:
            self._good.clear()
            self._version = self._keys.version
        if key is None or (key.algorithm is not None and key.algorithm != algorithm):
            raise _invalid()
        identity = self._identity(self._claims(token, key, algorithm))
        self._check_expiry(identity)
        self._good[token] = identity
        while len(self._good) > MOST_KEPT:
            self._good.popitem(last=False)
        return identity

    def _claims(self, token: str, key: IssuerKey, algorithm: str) -> Mapping[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.public,  # refused by the algorithm if it is of another type or curve
                algorithms=[algorithm],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": _REQUIRED},
            )
        except jwt.ExpiredSignatureError:
            raise _expired() from None
        except _MALFORMED:
            # Which check it was is told to nobody.
            raise _invalid() from None
        return claims

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        subject, tools = claims["sub"], claims.get(TOOLS_CLAIM)
        if (
            not isinstance(subject, str)
            or not 0 < len(subject.encode("utf-8", "replace")) <= LARGEST_PRINCIPAL_BYTES
            or not subject.isprintable()
        ):
            raise _invalid()
        roles = claims.get(self._rules.roles_claim, ())
        named = roles.split() if isinstance(roles, str) else roles
        if not isinstance(named, list | tuple):
            raise _invalid()
        # Others' roles may be among them.
        own = frozenset(_ROLES[name] for name in named if isinstance(name, str) and name in _ROLES)
        expires_at = (int(claims["exp"]) + LEEWAY_SECONDS) * 1_000_000
        try:
            principal = owner_of(claims.get(self._rules.tenant_claim, DEFAULT_TENANT), JWT_PREFIX + subject)
        except (TypeError, ValueError):
            raise _invalid() from None
        return Identity(principal, own, _tools(tools), expires_at)

    def _check_expiry(self, identity: Identity) -> None:
        if identity.expires_at is not None and identity.expires_at <= self._clock.now():
            raise _expired()


def _tools(claimed: object) -> tuple[str, ...]:
    if claimed is None:
        return ALL_TOOLS
    if not isinstance(claimed, list) or not all(isinstance(pattern, str) for pattern in claimed):
        raise _invalid()
    try:
        check_tools(tuple(claimed))
    except ValueError:
        raise _invalid() from None
    return tuple(claimed)


def _invalid() -> Unauthenticated:
    return Unauthenticated("invalid", "the token in the authorization header is not valid")


def _expired() -> Unauthenticated:
    return Unauthenticated("expired", "the token has expired")
