"""Turns what a call carries into an identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agenttx_server.access.certificate_rules import CertificateRules
from agenttx_server.access.errors import Unauthenticated
from agenttx_server.access.identity import ANONYMOUS, Identity
from agenttx_server.access.token_verifier import TokenVerifier
from agenttx_server.access.tokens import PREFIX

__all__ = ["Authenticator", "Credentials"]

_SCHEME = "bearer "
_LONGEST_HEADER = 8192


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a call carries: the bearer token, and the names in its connection's certificate; empty without one."""

    token: str = ""
    certificate_names: tuple[str, ...] = ()

    @classmethod
    def read(cls, headers: Sequence[object], certificate_names: tuple[str, ...] = ()) -> Credentials:
        """Read the values of the authorization header. Raises Unauthenticated for what is no bearer token."""
        if not headers:
            return cls("", certificate_names) if certificate_names else NO_CREDENTIALS
        header = headers[0]
        if len(headers) > 1 or not isinstance(header, str) or len(header) > _LONGEST_HEADER:
            raise Unauthenticated(
                "invalid", "the authorization header is sent once, and holds a bearer token"
            )
        if header[: len(_SCHEME)].lower() != _SCHEME or not (token := header[len(_SCHEME) :].strip()):
            raise Unauthenticated("invalid", "the authorization header must be: Bearer TOKEN")
        return cls(token, certificate_names)


NO_CREDENTIALS = Credentials()


class Verifier(Protocol):
    """Checks one kind of bearer token. Raises Unauthenticated."""

    def known(self, token: str) -> Identity | None:
        """Return who presents a token if that needs no waiting."""

    async def verify(self, token: str) -> Identity:
        """Return who presents a token."""


class Authenticator:
    """Decides who calls. Credentials that are given are checked, and never fall back to less.

    A token goes before the connection's certificate: a proxy may hold that. ``tokens`` is None where no token is known, ``jwts``
    where no issuer is, ``certificates`` where none is asked for; ``allows_anonymous`` lets those in who give no credentials.
    """

    def __init__(
        self,
        tokens: TokenVerifier | None,
        *,
        allows_anonymous: bool,
        certificates: CertificateRules | None = None,
        jwts: Verifier | None = None,
    ) -> None:
        self._tokens = tokens
        self._jwts = jwts
        self._certificates = certificates
        self._allows_anonymous = allows_anonymous

    def known(self, credentials: Credentials) -> Identity | None:
        """Return who calls if that needs no waiting; None if :meth:`identify` must be asked.

        Raises Unauthenticated.
        """
        if not credentials.token:
            return self._without_token(credentials)
        return self._verifier(credentials.token).known(credentials.token)

    async def identify(self, credentials: Credentials) -> Identity:
        """Return who calls. Raises Unauthenticated, LimitExceeded, StoreUnavailable."""
        if not credentials.token:
            return self._without_token(credentials)
        return await self._verifier(credentials.token).verify(credentials.token)

    @property
    def knows_certificates(self) -> bool:
        """Whether the names in clients' certificates are wanted."""
        return self._certificates is not None

    def _without_token(self, credentials: Credentials) -> Identity:
        if self._certificates is not None:
            return self._certificates.identity_of(credentials.certificate_names)
        if self._allows_anonymous:
            return ANONYMOUS
        raise Unauthenticated(
            "missing", "this server needs credentials: send the header authorization: Bearer TOKEN"
        )

    def _verifier(self, token: str) -> Verifier:
        verifier = self._tokens if token.startswith(f"{PREFIX}_") else self._jwts
        if verifier is None:
            raise Unauthenticated("invalid", "the token in the authorization header is not valid")
        return verifier
