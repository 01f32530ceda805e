"""Who sees whose."""

from __future__ import annotations

__all__ = ["EVERYBODY", "sees"]

EVERYBODY = ""
"""In a principal's place where something is read or settled: everybody's. Never the owner of anything."""


def sees(principal: str, owner: str) -> bool:
    """Whether what is ``owner``'s is there for a principal, or for who sees everybody's."""
    return principal in (owner, EVERYBODY)
