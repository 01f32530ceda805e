"""What each tenant may use of a server: rules in a TOML file.

    [[tenant]]
    name = "acme"
    tools = ["kv.*", "record.*", "http.*"]   # of the server's own tools; default: all, but fs.* and http.* in the default tenant alone
    max_open_transactions = 500
    max_steps_per_second = 100
    max_concurrent_steps = 50
    max_concurrent_streams = 100
    max_workers = 20

A limit that isn't given is none. A tenant that is not in the file has the defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agenttx_server.access.tokens import check_tools
from agenttx_server.engine.visibility import DEFAULT_TENANT, check_tenant

__all__ = ["TenantRule", "TenantRules", "TenantRulesRefused", "load_tenant_rules"]

_LARGEST = 1 << 31
# They act on the server's own file system, or send with its secrets: only who says so shares these.
_OF_THE_DEFAULT_TENANT = ("fs.", "http.")


class TenantRulesRefused(Exception):
    """The file can't be used; the message is one line."""


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

    def allows(self, tool: str) -> bool:
        """Whether the tenant may use a tool of the server's own. Those of its workers are always its own."""
        if self.tools is not None:
            return any(fnmatchcase(tool, pattern) for pattern in self.tools)
        return self.name == DEFAULT_TENANT or not tool.startswith(_OF_THE_DEFAULT_TENANT)


class TenantRules:
    """The rules of all tenants."""

    def __init__(self, rules: Iterable[TenantRule] = ()) -> None:
        self._rules = {rule.name: rule for rule in rules}

    def of(self, tenant: str) -> TenantRule:
        """Return a tenant's rule."""
        return self._rules.get(tenant) or TenantRule(tenant)

    @property
    def limit_anything(self) -> bool:
        """Whether there is a rule at all."""
        return bool(self._rules)


def load_tenant_rules(path: Path) -> TenantRules:
    """Read a file of rules. Raises TenantRulesRefused."""
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise TenantRulesRefused(f"{path} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TenantRulesRefused(f"{path} is no TOML: {error}") from error
    entries = found.get("tenant")
    if found.keys() != {"tenant"} or not isinstance(entries, list) or not entries:
        raise TenantRulesRefused(f"{path}: give one [[tenant]] or more, and nothing else")
    rules: dict[str, TenantRule] = {}
    for number, entry in enumerate(entries, 1):
        try:
            rule = _rule(entry)
            if rule.name in rules:
                raise ValueError(f"there are two of {rule.name!r}")
        except ValueError as bad:
            raise TenantRulesRefused(f"{path}, tenant {number}: {bad}") from bad
        rules[rule.name] = rule
    return TenantRules(rules.values())


def _rule(entry: Any) -> TenantRule:
    known = {field.name for field in fields(TenantRule)}
    if not isinstance(entry, dict) or not entry.keys() <= known:
        raise ValueError(f"only {', '.join(sorted(known))} can be given")
    name = entry.get("name")
    if not isinstance(name, str):
        raise ValueError("name is missing")
    check_tenant(name)
    values: dict[str, Any] = {"name": name}
    if "tools" in entry:
        tools = entry["tools"]
        if not isinstance(tools, list) or not all(isinstance(item, str) for item in tools):
            raise ValueError("tools is no list of texts")
        if tools:
            check_tools(tuple(tools))
        values["tools"] = tuple(tools)
    for limit in known - {"name", "tools"}:
        value = entry.get(limit, 0)
        if type(value) is not int or not 0 <= value < _LARGEST:
            raise ValueError(f"{limit} is no number from 0 to {_LARGEST - 1}")
        values[limit] = value
    return TenantRule(**values)
