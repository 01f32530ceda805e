"""Which MCP servers are mounted, and what the operator says about their tools: settings, checked before anything starts.

A server's word about itself is not trusted. What its tools promise about their effects is said here, by
whoever runs this server, or assumed to be the worst.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agenttx_server.engine.operator_files import FileRefused, read_document

__all__ = ["McpServer", "McpServerRules", "McpToolRules", "UndoRule", "mcp_servers"]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
SECRET = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class UndoRule(_Rules):
    """How a call is taken back: a tool of the same server, and its arguments.

    ``${arguments.NAME}`` and ``${result.NAME}`` in the arguments stand for what the call was given and what it returned.
    ``when_unknown`` says what becomes of a call whose result is needed and is not known: ``fail`` has a person look.
    """

    tool: str = Field(min_length=1, max_length=96)
    arguments: dict[str, Any] = Field(default_factory=dict)
    when_unknown: Literal["fail", "skip"] = "fail"


class McpToolRules(_Rules):
    """What the operator says about one tool; the rest is as it is by default."""

    effects: Literal["read_only", "transactional", "idempotent", "compensatable", "irreversible"] | None = (
        None
    )
    undo: UndoRule | None = None
    timeout_seconds: Seconds | None = None
    idle_timeout_seconds: Seconds | None = None
    retries: Annotated[int, Field(ge=0, le=5)] = 0
    approval: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> McpToolRules:
        if self.effects == "transactional":
            raise ValueError(
                "effects: a tool of an MCP server acts outside the transaction; it can't be transactional"
            )
        if self.effects == "compensatable" and self.undo is None:
            raise ValueError("effects: compensatable needs undo, which says how a call is taken back")
        if self.undo is not None and self.effects not in (None, "compensatable"):
            raise ValueError(f'undo goes with effects = "compensatable", not "{self.effects}"')
        if self.retries and self.effects not in ("read_only", "idempotent"):
            raise ValueError('retries go with effects "read_only" and "idempotent" only')
        return self


class McpServerRules(_Rules):
    """What the operator says about one server.

    ``trust_annotations``: whether its readOnlyHint and idempotentHint are believed. ``env`` and ``headers`` are all that
    it is given; ``$NAME`` as a value is the variable NAME of this server. ``private`` values never show.
    """

    trust_annotations: bool = False
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    cwd: Path | None = None
    timeout_seconds: Seconds | None = None
    idle_timeout_seconds: Seconds | None = None
    tools: dict[str, McpToolRules] = Field(default_factory=dict)


class _File(_Rules):
    servers: dict[str, McpServerRules] = Field(default_factory=dict)


class McpServer(_Rules):
    """One server that is mounted: a command to start, or the URL of one that listens."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    rules: McpServerRules = McpServerRules()


def mcp_servers(
    entries: Iterable[str], rules_file: Path | None, environment: Mapping[str, str] = os.environ
) -> tuple[McpServer, ...]:
    """Take ``NAME=COMMAND`` and ``NAME=URL`` entries and the file of rules.

    Raises:
        FileRefused: one line that says which part of the file makes no sense; it never holds a value.
        ValueError: the same of an entry.
    """
    rules = _read(rules_file).servers if rules_file is not None else {}
    found: dict[str, McpServer] = {}
    for number, entry in enumerate(entries, start=1):
        name, _, target = (part.strip() for part in entry.partition("="))
        if not NAME.fullmatch(name) or not target:
            raise ValueError(
                f"entry {number} is not NAME=COMMAND or NAME=URL, NAME of letters, digits, _ and -"
            )
        if name in found:
            raise ValueError(f"names server {name!r} twice")
        try:
            given = _resolved(rules.get(name, McpServerRules()), environment)
            _check_fit(target, given)
        except ValueError as bad:
            raise FileRefused(f"{rules_file}: servers.{name}: {bad}") from None
        found[name] = _server(name, target, given)
    strangers = sorted(set(rules) - set(found))
    if strangers:
        raise FileRefused(f"{rules_file}: servers.{strangers[0]} is no server that is mounted")
    return tuple(found.values())


def _check_fit(target: str, rules: McpServerRules) -> None:
    if _is_url(target) and (rules.env or rules.cwd):
        raise ValueError("it is reached by URL; env and cwd are for servers that are started")
    if not _is_url(target) and rules.headers:
        raise ValueError("it is started; headers are for servers that are reached by URL")


def _is_url(target: str) -> bool:
    return re.match(r"https?://", target) is not None


def _server(name: str, target: str, rules: McpServerRules) -> McpServer:
    if _is_url(target):
        return McpServer(name=name, url=target, rules=rules)
    try:
        command = shlex.split(target)
    except ValueError as error:
        raise ValueError(f"the command of server {name!r} can't be read: {error}") from None
    return McpServer(name=name, command=tuple(command), rules=rules)


def _resolved(rules: McpServerRules, environment: Mapping[str, str]) -> McpServerRules:
    """Return the rules with the variables that they name filled in."""

    def value(where: str, text: str) -> str:
        match = SECRET.fullmatch(text)
        if match is None:
            return text
        if match[1] not in environment:
            raise ValueError(f"{where} names the variable {match[1]}, which is not set")
        return environment[match[1]]

    return rules.model_copy(
        update={
            "env": {key: value(f"env.{key}", text) for key, text in rules.env.items()},
            "headers": {key: value(f"headers.{key}", text) for key, text in rules.headers.items()},
        }
    )


def _read(path: Path) -> _File:
    try:
        return _File.model_validate(read_document(path, quotes=False))
    except ValidationError as bad:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {str(each['msg']).removeprefix('Value error, ')}"
            for each in bad.errors(include_url=False, include_input=False)[:5]
        )
        raise FileRefused(f"{path}: {problems}") from None
