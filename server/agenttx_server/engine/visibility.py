"""Who sees whose: tenants, the principals in them, and the names that both have in the database.

An *owner* is a principal as everything that is its own names it: ``ann`` in the default tenant, ``@acme/ann`` in another. A
*scope* is whose things a call sees: an owner, or all owners of a tenant (``@/`` of the default one, ``@acme/``). No principal of
the default tenant begins with ``@``, and no tenant has a slash in its name, so no two of these can be mistaken for one another.

What a tenant's principals share (committed state, graphs, pipelines, tools of workers) is kept under names that begin likewise.
"""

from __future__ import annotations

import re

__all__ = [
    "ANONYMOUS_OWNER",
    "DEFAULT_TENANT",
    "EVERYBODY",
    "check_tenant",
    "everybody_of",
    "in_tenant",
    "is_everybody",
    "name_in_tenant",
    "owner_of",
    "sees",
    "space_of",
    "tenant_of",
    "thread_prefix",
]

ANONYMOUS_OWNER = "anonymous"
DEFAULT_TENANT = "default"
EVERYBODY = "@/"
"""The scope of all owners of the default tenant. Never the owner of anything."""

_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)


def check_tenant(tenant: str) -> None:
    """Raise ValueError for what can't be a tenant's name. There are no two that differ in case or Unicode form alone."""
    if not _TENANT.fullmatch(tenant):
        raise ValueError(
            "a tenant's name is 1 to 63 of a-z, 0-9, '.', '_' and '-', the first one a letter or digit"
        )


def owner_of(tenant: str, principal: str) -> str:
    """Return the owner that a principal of a tenant is. Raises ValueError for names that could be another's."""
    check_tenant(tenant)
    if not principal or principal.startswith("@"):
        raise ValueError("a principal's name is not empty and doesn't begin with '@'")
    return space_of(tenant) + principal


def tenant_of(owner: str) -> str:
    """Return the tenant of an owner or of a scope."""
    if not owner.startswith("@"):
        return DEFAULT_TENANT
    return owner[1:].partition("/")[0] or DEFAULT_TENANT


def space_of(tenant: str) -> str:
    """Return what names of a tenant begin with in the database: nothing for the default one."""
    return "" if tenant == DEFAULT_TENANT else f"@{tenant}/"


def everybody_of(owner: str) -> str:
    """Return the scope of all owners of an owner's tenant."""
    return space_of(tenant_of(owner)) or EVERYBODY


def is_everybody(scope: str) -> bool:
    """Whether a scope is that of all owners of a tenant."""
    return scope.startswith("@") and scope.endswith("/") and scope.count("/") == 1


def sees(scope: str, owner: str) -> bool:
    """Whether what is ``owner``'s is there for who has a scope."""
    return scope == owner or (is_everybody(scope) and tenant_of(scope) == tenant_of(owner))


def in_tenant(owner: str, name: str) -> str:
    """Return the name in the database of what an owner's tenant calls by a name.

    A name of the default tenant's that looks like another's is put where nothing of another is.
    """
    space = space_of(tenant_of(owner)) or (EVERYBODY if name.startswith("@") else "")
    return space + name


def name_in_tenant(owner: str, stored: str) -> str:
    """Return what an owner's tenant calls something that is its own."""
    return stored.removeprefix(everybody_of(owner))


def thread_prefix(owner: str) -> str:
    """Return what the kept names of an owner's threads begin with: two owners' threads of one name are two."""
    if owner == ANONYMOUS_OWNER:
        return ""
    # A space ends the owner: those that have one in their name must not be taken for others.
    return f"@{owner.replace('%', '%25').replace(' ', '%20')} "
