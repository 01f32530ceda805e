"""Whom clients' certificates stand for: rules in a TOML file, tried in their order.

    [[certificate]]
    name = "spiffe://example.org/agents/*"   # a subject alternative name, or a pattern of them
    roles = ["agent"]

    [[certificate]]
    name = "mailer.example.org"
    roles = ["worker"]
    tools = ["mail.*"]
    principal = "mailer"                     # without it the principal is cert:NAME
    tenant = "acme"                          # without it the default one

Without a file every certificate of the given authorities is an agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from agenttx_server.access.errors import Unauthenticated
from agenttx_server.access.identity import ALL_TOOLS, CERTIFICATE_PREFIX, Identity, Role, roles_named
from agenttx_server.access.tokens import check_principal, check_tools
from agenttx_server.engine.operator_files import Table, read_entries
from agenttx_server.engine.visibility import DEFAULT_TENANT, check_tenant, owner_of

__all__ = ["AGENTS", "CertificateRule", "CertificateRules", "load_certificate_rules"]

_KEYS = ("name", "roles", "tools", "principal", "tenant")
_WILD = frozenset("*?[")
_MOST_KEPT = 1024


@dataclass(frozen=True, slots=True)
class CertificateRule:
    """Whom certificates with a name of this pattern stand for; an empty principal is the name's own."""

    pattern: str
    roles: frozenset[Role]
    tools: tuple[str, ...] = ALL_TOOLS
    principal: str = ""
    tenant: str = DEFAULT_TENANT


AGENTS = (CertificateRule("*", frozenset({Role.AGENT})),)


class CertificateRules:
    """Finds who a certificate stands for."""

    def __init__(self, rules: Sequence[CertificateRule] = AGENTS) -> None:
        self._rules = tuple(rules)
        self._found: dict[tuple[str, ...], Identity] = {}

    def identity_of(self, names: tuple[str, ...]) -> Identity:
        """Return who a certificate with these alternative names stands for, by the first rule that fits one.

        Raises Unauthenticated: nobody.
        """
        known = self._found.get(names)
        if known is not None:
            return known
        identity = self._look(names)
        if len(self._found) < _MOST_KEPT:
            self._found[names] = identity
        return identity

    def _look(self, names: tuple[str, ...]) -> Identity:
        for rule in self._rules:
            for name in names:
                if name.isprintable() and fnmatchcase(name, rule.pattern):
                    principal = owner_of(rule.tenant, rule.principal or CERTIFICATE_PREFIX + name)
                    return Identity(principal, rule.roles, rule.tools)
        raise Unauthenticated("invalid", "the client's certificate has no name that this server knows")


def load_certificate_rules(path: Path) -> CertificateRules:
    """Read a file of rules. Raises FileRefused."""
    return CertificateRules(read_entries(path, "certificate", _KEYS, _rule))


def _rule(table: Table) -> CertificateRule:
    name, principal = table.text("name"), table.text("principal", "")
    if principal:
        check_principal(principal)
        if _WILD & set(name):
            # Else everybody whom the pattern fits would be one caller, and see the others' things.
            raise ValueError("a principal can be given to one name only, and not to a pattern")
    roles = roles_named(table.texts("roles"))
    tools = table.texts("tools", ALL_TOOLS)
    check_tools(tools)
    tenant = table.text("tenant", DEFAULT_TENANT)
    check_tenant(tenant)
    return CertificateRule(name, roles, tools, principal, tenant)
