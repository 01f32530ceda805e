"""Secrets that tools are given in place of ``secret://NAME``, by name: which tools, and of which tenants.

    [MAIL_KEY]
    env = "MAIL_KEY"                   # or value = "…", or file = "/run/secrets/mail"
    tools = ["mail.*"]                 # tools, and undo actions, that may receive it
    tenants = ["default", "acme"]      # default: the default tenant alone

A file that holds values itself is its owner's alone (mode 600).
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from agenttx_server.access.tokens import check_tools
from agenttx_server.engine.visibility import DEFAULT_TENANT, check_tenant
from agenttx_server.http_secrets import Secret, SecretRefused, Secrets, check_value, name_of, value_of

__all__ = ["ToolSecret", "ToolSecrets", "load_tool_secrets"]

_SOURCES = ("value", "env", "file")
_FIELDS = frozenset({*_SOURCES, "tools", "tenants"})


@dataclass(frozen=True, slots=True)
class ToolSecret:
    """A value, and who may receive it."""

    name: str
    value: str = field(repr=False)
    tools: tuple[str, ...]
    tenants: frozenset[str] = frozenset({DEFAULT_TENANT})


class ToolSecrets:
    """All secrets of a server that tools may receive."""

    def __init__(self, secrets: Iterable[ToolSecret] = ()) -> None:
        self._by_name = {secret.name: secret for secret in secrets}
        self.texts = Secrets([Secret(secret.name, secret.value) for secret in self._by_name.values()])

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def value_for(self, name: str, tool: str, tenant: str) -> str:
        """Return a secret's value for a tool. Raises SecretRefused, in the same words for what is another tenant's and what isn't there."""
        secret = self._by_name.get(name)
        if secret is None or tenant not in secret.tenants:
            raise SecretRefused(f"there is no secret '{name[:64]}' in the server's settings")
        if not any(fnmatchcase(tool, pattern) for pattern in secret.tools):
            raise SecretRefused(f"the secret '{name}' is not for '{tool}'")
        return secret.value


def load_tool_secrets(path: Path) -> ToolSecrets:
    """Read a TOML file of secrets.

    Raises:
        ValueError: one line, which names the file and the secret and never holds a value.
    """
    try:
        mode = path.stat().st_mode
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError:  # its text may quote the line, and with it a value
        raise ValueError(f"{path}: is no TOML") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and any(
        isinstance(table, Mapping) and "value" in table for table in tables.values()
    ):
        raise ValueError(f"{path}: holds secrets and others may read it; chmod 600 it, or use env or file")
    return ToolSecrets(_secret(path, name, table) for name, table in tables.items())


def _secret(path: Path, name: str, table: object) -> ToolSecret:
    def refused(why: str) -> ValueError:
        return ValueError(f"{path}: secret {name[:64]!r}: {why}")

    if not name_of(name) or not isinstance(table, Mapping):
        raise refused('is no table with a name of A-Z a-z 0-9 _ -, such as [API_KEY] with tools = ["…"]')
    unknown = sorted(set(table) - _FIELDS)
    if unknown:
        raise refused(f"has the unknown field {unknown[0][:64]!r}; there are {', '.join(sorted(_FIELDS))}")
    given = [source for source in _SOURCES if source in table]
    if len(given) != 1 or not isinstance(table[given[0]], str):
        raise refused("needs one of value, env and file, a text")
    tools = _texts(table.get("tools"))
    tenants = _texts(table.get("tenants", [DEFAULT_TENANT]))
    if not tools or not tenants:
        raise refused("needs tools, and may have tenants: lists of those that may receive it")
    try:
        check_tools(tools)
        for tenant in tenants:
            check_tenant(tenant)
    except ValueError as error:
        raise refused(str(error)) from None
    value = value_of(path, given[0], table[given[0]], refused)
    check_value(value, refused)
    return ToolSecret(name, value, tools, frozenset(tenants))


def _texts(given: object) -> tuple[str, ...]:
    """Return a list of texts, nothing for what is none."""
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        return ()
    return tuple(given)
