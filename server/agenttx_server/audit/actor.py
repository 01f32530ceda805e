"""Who acts: noted once where a call's identity is known, read where its deeds are written.

A context variable and not an argument, because between the two lie tasks, groups and sagas that have no other use for it,
and because none of them could then forget it. Tasks take it over from who starts them: a run that goes on behind its
call acts for its caller. What the server does by itself (recovery, reaping, retention) has none, and is ``server``.
"""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["SERVER", "act_as", "current_actor"]

SERVER = "server"
_actor: ContextVar[str] = ContextVar("agenttx_actor", default=SERVER)


def act_as(principal: str) -> None:
    """Note who acts from here on, in this task and those that it starts."""
    _actor.set(principal)


def current_actor() -> str:
    """Return who acts: a principal, ``server``, or ``local:NAME`` for who works on the database itself."""
    return _actor.get()
