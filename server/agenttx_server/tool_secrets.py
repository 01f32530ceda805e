"""Secrets that tools are given in place of ``secret://NAME``, by name: which tools, and of which tenants.

    [MAIL_KEY]
    env = "MAIL_KEY"                   # or value = "…", or file = "/run/secrets/mail"
    tools = ["mail.*"]                 # tools, and undo actions, that may receive it
    tenants = ["default", "acme"]      # default: the default tenant alone

A file that holds values itself is its owner's alone (mode 600).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from agenttx_server.access.tokens import check_tools
from agenttx_server.engine.operator_files import Table
from agenttx_server.engine.visibility import DEFAULT_TENANT, check_tenant
from agenttx_server.http_secrets import Secret, Secrets
from agenttx_server.secret_values import SecretRefused, read_secrets

__all__ = ["ToolSecret", "ToolSecrets", "load_tool_secrets"]


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
    """Read a TOML file of secrets. Raises FileRefused, which never holds a value."""
    return ToolSecrets(read_secrets(path, ("tools", "tenants"), _secret))


def _secret(name: str, value: str, table: Table) -> ToolSecret:
    tools = table.texts("tools")
    check_tools(tools)
    tenants = table.texts("tenants", (DEFAULT_TENANT,))
    for tenant in tenants:
        check_tenant(tenant)
    return ToolSecret(name, value, tools, frozenset(tenants))
