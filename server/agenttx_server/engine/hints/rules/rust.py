"""Rust: panics and the standard errors."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, Rule, rule
from .filesystem import ERRNO

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "rust.unwrap_none",
        "option",
        r"called `Option::(?:unwrap|expect)\(\)` on a `None` value",
        C.NULL_REFERENCE,
        "called Option::unwrap() on a None value",
        "Make sure the value exists before it is used.",
    ),
    rule(
        "rust.parse",
        "kind",
        r"(?P<detail>Parse(?:Int|Float|Bool)Error \{ kind: \w{1,40} \}|invalid digit found in string|"
        r"cannot parse (?:integer|float) from empty string|invalid float literal|number too large to "
        r"fit in target type)",
        C.INVALID_VALUE,
        "{detail}",
        "Pass a number.",
        weight=LIKELY,
    ),
    rule(
        "rust.io",
        "kind",
        r"(?:Os|Custom) \{ (?:code: \d{1,6}, )?kind: (?P<kind>\w{1,40}), (?:message|error): "
        r"\"(?P<detail>[^\"\n]{1,200})\"",
        C.UNKNOWN,
        "{kind}: {detail}",
        "{advice}",
        read=lambda match, cause: _rust_io(match["kind"]),
        weight=CERTAIN,
    ),
)


def _rust_io(kind: str) -> dict[str, str | None]:
    name = {
        "NotFound": "ENOENT",
        "PermissionDenied": "EACCES",
        "AlreadyExists": "EEXIST",
        "ConnectionRefused": "ECONNREFUSED",
        "ConnectionReset": "ECONNRESET",
        "BrokenPipe": "EPIPE",
        "AddrInUse": "EADDRINUSE",
        "TimedOut": "ETIMEDOUT",
        "StorageFull": "ENOSPC",
        "IsADirectory": "EISDIR",
        "NotADirectory": "ENOTDIR",
        "DirectoryNotEmpty": "ENOTEMPTY",
        "InvalidInput": "EINVAL",
    }.get(kind, "EIO")
    return {"category": ERRNO[name][1].value, "advice": ERRNO[name][2]}
