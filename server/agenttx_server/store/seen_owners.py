"""Whose rows a query finds: an owner's, or those of all owners of a tenant (engine.visibility).

The store itself also asks for everybody's, of all tenants: the empty scope, which no call ever has.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, func, true

from agenttx_server.engine.visibility import EVERYBODY, is_everybody

__all__ = ["SCOPE_OF_ALL", "in_space_text", "seen_by", "seen_text", "seen_values"]

SCOPE_OF_ALL = ""


def seen_by(owner: ColumnElement[str], scope: str) -> ColumnElement[bool]:
    """Return the condition that an owner is seen by who has a scope."""
    if scope == SCOPE_OF_ALL:
        return true()
    if scope == EVERYBODY:
        return func.substr(owner, 1, 1) != "@"
    if is_everybody(scope):
        return func.substr(owner, 1, len(scope)) == scope
    return owner == scope


def seen_text(owner: str) -> str:
    """Return the same as text, of a column of our own, for a query that runs with :func:`seen_values`."""
    return (
        f"(:every = 1 OR {owner} = :principal OR (:space <> '' AND substr({owner}, 1, length(:space)) = :space) "
        f"OR (:plain = 1 AND substr({owner}, 1, 1) <> '@'))"
    )


def seen_values(scope: str) -> dict[str, Any]:
    """Return the values that :func:`seen_text` needs."""
    return {
        "every": int(scope == SCOPE_OF_ALL),
        "principal": scope,
        "space": scope if is_everybody(scope) and scope != EVERYBODY else "",
        "plain": int(scope == EVERYBODY),
    }


def in_space_text(name: str) -> str:
    """Return the condition that a name is of the tenant whose names begin with ``:space``."""
    return f"substr({name}, 1, length(:space)) = :space AND (:space <> '' OR substr({name}, 1, 1) <> '@')"
