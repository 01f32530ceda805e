"""What each tenant may use of a server: rules in a TOML file.

    [[tenant]]
    name = "acme"
    tools = ["kv.*", "record.*", "http.*"]   # of the server's own tools; default: all, but fs.* and http.* in the default tenant alone
    max_open_transactions = 500
    max_steps_per_second = 100
    max_concurrent_steps = 50
    max_concurrent_streams = 100
    max_workers = 20
    max_stored_bytes = 10_000_000_000

A limit that isn't given is none. A tenant that is not in the file has the defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path

from agenttx_server.access.tokens import check_tools
from agenttx_server.engine.operator_files import Table, read_entries
from agenttx_server.engine.visibility import DEFAULT_TENANT, check_tenant

__all__ = ["TenantRule", "TenantRules", "load_tenant_rules"]

_LARGEST, _LARGEST_BYTES = (1 << 31) - 1, (1 << 60) - 1
# They act on the server's own file system, or send with its secrets: only who says so shares these.
_OF_THE_DEFAULT_TENANT = ("fs.", "http.")


@dataclass(frozen=True, slots=True)
class TenantRule:
    """What a tenant may use. A limit of 0 is none; ``tools`` None are the default ones."""

    name: str
    tools: tuple[str, ...] | None = None
    max_open_transactions: int = 0
    max_steps_per_second: int = 0
    max_concurrent_steps: int = 0
    max_concurrent_streams: int = 0
    max_workers: int = 0
    max_stored_bytes: int = 0

    def allows(self, tool: str) -> bool:
        """Whether the tenant may use a tool of the server's own. Those of its workers are always its own."""
        if self.tools is not None:
            return any(fnmatchcase(tool, pattern) for pattern in self.tools)
        return self.name == DEFAULT_TENANT or not tool.startswith(_OF_THE_DEFAULT_TENANT)


_LIMITS = tuple(field.name for field in fields(TenantRule) if field.name.startswith("max_"))


class TenantRules:
    """The rules of all tenants."""

    def __init__(self, rules: Iterable[TenantRule] = ()) -> None:
        self._rules = {rule.name: rule for rule in rules}

    def of(self, tenant: str) -> TenantRule:
        """Return a tenant's rule."""
        return self._rules.get(tenant) or TenantRule(tenant)

    @property
    def names(self) -> frozenset[str]:
        """The tenants that have a rule of their own."""
        return frozenset(self._rules)

    @property
    def limit_bytes(self) -> bool:
        """Whether what a tenant stores is limited for any."""
        return any(rule.max_stored_bytes for rule in self._rules.values())

    @property
    def limit_anything(self) -> bool:
        """Whether there is a rule at all."""
        return bool(self._rules)


def load_tenant_rules(path: Path) -> TenantRules:
    """Read a file of rules. Raises FileRefused."""
    rules: dict[str, TenantRule] = {}

    def read(table: Table) -> None:
        rule = _rule(table)
        if rule.name in rules:
            raise ValueError(f"there are two of {rule.name!r}")
        rules[rule.name] = rule

    read_entries(path, "tenant", ("name", "tools", *_LIMITS), read)
    return TenantRules(rules.values())


def _rule(table: Table) -> TenantRule:
    name = table.text("name")
    check_tenant(name)
    tools = table.texts("tools", least=0) if "tools" in table else None
    if tools:
        check_tools(tools)
    return TenantRule(
        name, tools, **{limit: table.whole_number(limit, 0, _largest(limit), 0) for limit in _LIMITS}
    )


def _largest(limit: str) -> int:
    return _LARGEST_BYTES if limit.endswith("_bytes") else _LARGEST
