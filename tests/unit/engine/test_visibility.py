"""Who sees whose: owners, scopes and names can't be taken for one another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.engine.visibility import (
    EVERYBODY,
    everybody_of,
    in_tenant,
    is_everybody,
    name_in_tenant,
    owner_of,
    sees,
    tenant_of,
    thread_prefix,
)

tenants = st.sampled_from(["default", "acme", "acme.eu", "a"])
principals = st.text(min_size=1, max_size=20).filter(lambda text: not text.startswith("@"))
names = st.text(st.sampled_from("@/acme default."), max_size=20)


@given(tenants, principals, tenants, principals)
def test_an_owner_is_seen_by_itself_and_by_who_sees_its_tenant_alone(
    tenant: str, principal: str, other_tenant: str, other_principal: str
):
    owner, other = owner_of(tenant, principal), owner_of(other_tenant, other_principal)
    assert tenant_of(owner) == tenant
    assert not is_everybody(owner)
    assert sees(owner, owner)
    assert sees(everybody_of(owner), owner)
    assert (owner == other) == ((tenant, principal) == (other_tenant, other_principal))
    assert sees(other, owner) == (owner == other)
    assert sees(everybody_of(other), owner) == (tenant == other_tenant)


@given(tenants, names, tenants, names)
def test_names_of_two_tenants_never_meet(tenant: str, name: str, other_tenant: str, other_name: str):
    owner, other = owner_of(tenant, "ann"), owner_of(other_tenant, "ann")
    kept = in_tenant(owner, name)
    assert name_in_tenant(owner, kept) == name
    assert (kept == in_tenant(other, other_name)) == ((tenant, name) == (other_tenant, other_name))


@given(tenants, principals, names, tenants, principals, names)
def test_threads_of_two_owners_never_meet(
    tenant: str, principal: str, name: str, other_tenant: str, other_principal: str, other_name: str
):
    one, other = owner_of(tenant, principal), owner_of(other_tenant, other_principal)
    meet = thread_prefix(one) + name == thread_prefix(other) + other_name
    if "anonymous" not in (one, other):
        assert meet == ((one, name) == (other, other_name))
    assert thread_prefix("anonymous") == ""


def test_the_scope_of_all_is_nobodys():
    assert is_everybody(EVERYBODY)
    for principal in ("", "@", "@/", "@acme/ann"):
        with pytest.raises(ValueError, match="principal"):
            owner_of("default", principal)
    for tenant in ("", "A", "a/b", "a b", "@a", "ä", "a" * 64):
        with pytest.raises(ValueError, match="tenant"):
            owner_of(tenant, "ann")
