"""Refusals of callers, beside those of the engine.

Unauthenticated     UNAUTHENTICATED    who calls is not known; metadata ``why``
PermissionDenied    PERMISSION_DENIED  it is known, and may not do this
JwtKeysUnavailable  UNAVAILABLE        whether a token is good can't be known now
"""

from __future__ import annotations

from agenttx_server.engine.errors import EngineError, Unavailable

__all__ = ["JwtKeysUnavailable", "PermissionDenied", "Unauthenticated"]


class Unauthenticated(EngineError):
    """Credentials are missing, wrong, expired or revoked; ``why`` says which, in one word."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message, reason="UNAUTHENTICATED", metadata={"why": why})


class PermissionDenied(EngineError):
    """The caller's roles, or the tools it may offer, don't allow this."""


class JwtKeysUnavailable(Unavailable):
    """The issuer's keys can't be had, and those that were are too old."""

    def __init__(self) -> None:
        super().__init__(
            "the keys of the tokens' issuer can't be had now; send the same request again",
            reason="KEYS_UNAVAILABLE",
            retry_after_seconds=10.0,
        )
