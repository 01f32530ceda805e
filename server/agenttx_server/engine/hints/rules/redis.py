"""Redis: the first word of an answer is its kind."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "redis.wrongtype",
        "wrongtype",
        r"WRONGTYPE Operation against a key holding the wrong kind of value",
        C.INVALID_VALUE,
        "WRONGTYPE: the Redis key holds another kind of value than this command works on",
        "Use another key, or the command for its type.",
    ),
    rule(
        "redis.auth",
        "noauth wrongpass",
        r"(?P<code>NOAUTH|WRONGPASS) (?P<detail>[^\n]{1,120})",
        C.AUTHENTICATION,
        "{code} {detail}",
        "Correct the Redis credentials.",
    ),
    rule(
        "redis.noperm",
        "noperm",
        r"NOPERM (?P<detail>[^\n]{1,160})",
        C.PERMISSION_DENIED,
        "NOPERM {detail}",
        "Ask for the permission, or use another command or key.",
    ),
    rule(
        "redis.oom",
        "oom",
        r"OOM command not allowed when used memory > 'maxmemory'",
        C.RESOURCE_EXHAUSTED,
        "OOM command not allowed when used memory > 'maxmemory'",
        "Free memory in Redis, or store less.",
    ),
    rule(
        "redis.readonly",
        "readonly misconf",
        r"READONLY You can't write against a read only replica|MISCONF [^\n]{1,80}",
        C.PERMISSION_DENIED,
        "{message}",
        "Write to the primary.",
    ),
    rule(
        "redis.busy",
        "busykey busygroup execabort tryagain",
        r"(?P<code>BUSYKEY|BUSYGROUP|EXECABORT|TRYAGAIN) (?P<detail>[^\n]{1,160})",
        C.CONFLICT,
        "{code} {detail}",
        "Read the current state, then retry.",
    ),
    rule(
        "redis.loading",
        "loading clusterdown masterdown",
        r"(?P<code>LOADING|CLUSTERDOWN|MASTERDOWN) (?P<detail>[^\n]{1,120})",
        C.CONNECTION,
        "{code} {detail}",
        "Retry in a moment.",
    ),
    rule(
        "redis.noscript",
        "noscript nogroup",
        r"(?P<code>NOSCRIPT|NOGROUP) (?P<detail>[^\n]{1,160})",
        C.MISSING_RECORD,
        "{code} {detail}",
        "Create it first.",
    ),
    rule(
        "redis.syntax",
        "err responseerror replyerror",
        r"(?:\bERR |ResponseError: |ReplyError: )(?P<detail>(?:unknown command|wrong number of "
        r"arguments|syntax error|value is not an integer|index out of range|no such key|"
        r"invalid)[^\n]{0,140})",
        C.INVALID_VALUE,
        "Redis: {detail}",
        "Correct the command.",
    ),
)
