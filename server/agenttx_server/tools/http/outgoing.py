"""A request as it is sent: every template filled in, every header checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from agenttx_server.tools.http.target import Target

__all__ = ["SAFE_METHODS", "Outgoing"]

# RFC 9110, 9.2.1: they ask for nothing to be changed.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# What another origin is told when a request is sent on to it: nothing that could be a credential.
_KEPT_ACROSS_ORIGINS: Final = frozenset(
    {"accept", "accept-encoding", "accept-language", "content-type", "idempotency-key", "user-agent"}
)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """``secret_headers`` are names, in lower case, of headers that hold a secret; so may body and path."""

    method: str
    target: Target
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    secret_headers: frozenset[str] = frozenset()
    body_has_secret: bool = False

    @property
    def is_safe(self) -> bool:
        """Whether it asks for nothing to be changed."""
        return self.method in SAFE_METHODS

    def sent_on(self, target: Target) -> Outgoing:
        """Return the request as it is sent to where a redirect leads.

        Raises:
            ValueError: it must not be sent there; one line.
        """
        if self.target.scheme == "https" and target.scheme != "https":
            raise ValueError("the redirect leads from https to http")
        if target.origin == self.target.origin:
            return replace(self, target=target)
        if self.body_has_secret:
            raise ValueError("the redirect would take a secret in the body to another host")
        kept = tuple(
            (name, value)
            for name, value in self.headers
            if name.lower() in _KEPT_ACROSS_ORIGINS and name.lower() not in self.secret_headers
        )
        return replace(self, target=target, headers=kept)
