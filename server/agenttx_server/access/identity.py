"""Who a caller is and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from agenttx_server.engine.visibility import ANONYMOUS_OWNER, everybody_of, tenant_of

__all__ = [
    "ALL_TOOLS",
    "ANONYMOUS",
    "CERTIFICATE_PREFIX",
    "JWT_PREFIX",
    "Identity",
    "Role",
    "roles_named",
]

ALL_TOOLS = ("*",)
CERTIFICATE_PREFIX = "cert:"
JWT_PREFIX = "jwt:"


class Role(Enum):
    """What a caller is here for. A caller may have several."""

    AGENT = "agent"
    """Opens transactions and runs of its own, works in them, reads them."""
    WORKER = "worker"
    """Offers tools and runs them."""
    OPERATOR = "operator"
    """Reads everybody's in its tenant, settles what is stuck, decides approvals."""
    AUDITOR = "auditor"
    """Reads everybody's in its tenant and changes nothing."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller whose credentials were checked.

    Attributes:
        principal: Whose what it makes is: an owner (engine.visibility), which names its tenant. Never empty.
        roles: What it may do.
        tools: As a worker, patterns (``mail.*``) of the tools that it may offer.
        expires_at: When its credentials end, in microseconds UTC; None for never.
        sees_all: Whether operators' and auditors' sight of everybody's goes with its roles.
    """

    principal: str
    roles: frozenset[Role]
    tools: tuple[str, ...] = ALL_TOOLS
    expires_at: int | None = None
    sees_all: bool = True

    def scope(self, allowed: frozenset[Role]) -> str:
        """Return whose things a call sees that is open to ``allowed``: its own, or those of all its tenant."""
        overseers = self.roles & allowed & _OVERSEERS
        return everybody_of(self.principal) if self.sees_all and overseers else self.principal

    @property
    def tenant(self) -> str:
        """Whose things it can ever see."""
        return tenant_of(self.principal)

    def may_offer(self, tool: str) -> bool:
        """Whether a worker of this identity may offer a tool of this name."""
        return any(fnmatchcase(tool, pattern) for pattern in self.tools)


_OVERSEERS = frozenset({Role.OPERATOR, Role.AUDITOR})

ANONYMOUS = Identity(ANONYMOUS_OWNER, frozenset(Role), sees_all=False)
"""Everybody without credentials, where that is allowed: may do everything, to what is the anonymous one's."""


def roles_named(names: Iterable[str]) -> frozenset[Role]:
    """Return the roles of these names. Raises ValueError, whose text names what is none."""
    found = set()
    for name in names:
        try:
            found.add(Role(name))
        except ValueError:
            known = ", ".join(role.value for role in Role)
            raise ValueError(f"{name!r} is no role; roles are {known}") from None
    return frozenset(found)
