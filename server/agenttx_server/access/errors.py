"""Refusals of callers.

EngineError
├── Unauthenticated     UNAUTHENTICATED    who calls is not known; metadata ``why``
└── PermissionDenied    PERMISSION_DENIED  it is known, and may not do this
"""

from __future__ import annotations

from agenttx_server.engine.errors import EngineError

__all__ = ["PermissionDenied", "Unauthenticated"]


class Unauthenticated(EngineError):
    """Credentials are missing, wrong, expired or revoked; ``why`` says which, in one word."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message, reason="UNAUTHENTICATED", metadata={"why": why})


class PermissionDenied(EngineError):
    """The caller's roles, or the tools it may offer, don't allow this."""
