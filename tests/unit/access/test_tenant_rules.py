"""What a file of tenants' rules may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from agenttx_server.access.tenant_rules import TenantRules, load_tenant_rules
from agenttx_server.engine.operator_files import FileRefused


def test_a_tenant_has_its_rule_and_others_have_the_defaults(tmp_path: Path):
    file = tmp_path / "tenants.toml"
    file.write_text(
        '[[tenant]]\nname = "acme"\ntools = ["kv.*"]\nmax_steps_per_second = 5\n'
        '[[tenant]]\nname = "none"\ntools = []\n[[tenant]]\nname = "files"\ntools = ["fs.read"]\n'
    )
    rules = load_tenant_rules(file)
    acme = rules.of("acme")
    assert (acme.max_steps_per_second, acme.max_open_transactions) == (5, 0)
    assert acme.allows("kv.get")
    assert not acme.allows("http.request")
    assert not rules.of("none").allows("kv.get")
    assert rules.of("files").allows("fs.read")
    assert rules.limit_anything
    other = TenantRules().of("other")
    assert other.allows("kv.get")
    assert not other.allows("fs.read")
    assert not other.allows("http.request")  # it sends with the server's secrets
    assert TenantRules().of("default").allows("fs.read")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"give 1 to 10,000 tables \[\[tenant\]\]"),
        ("x = 1", r"'x' means nothing here; give \[\[tenant\]\]"),
        ('[[tenant]]\nname = "Acme"', "tenant's name"),
        ("[[tenant]]\ntools = []", "tenant 1: `name` is missing"),
        (
            '[[tenant]]\nname = "a"\nquota = 1',
            r"tenant 1 \('a'\): unknown key 'quota'; known are name, tools, max_",
        ),
        ('[[tenant]]\nname = "a"\nmax_workers = -1', "max_workers"),
        ('[[tenant]]\nname = "a"\nmax_workers = true', "max_workers"),
        ('[[tenant]]\nname = "a"\ntools = "kv.*"', "tools"),
        ('[[tenant]]\nname = "a"\n[[tenant]]\nname = "a"', "two"),
        ("[", "not valid TOML: .* .at end of document"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(tmp_path: Path, text: str, says: str):
    file = tmp_path / "tenants.toml"
    file.write_text(text)
    with pytest.raises(FileRefused, match=says):
        load_tenant_rules(file)
    with pytest.raises(FileRefused, match="can't be read"):
        load_tenant_rules(tmp_path / "missing")
