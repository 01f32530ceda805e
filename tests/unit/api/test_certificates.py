"""The server's certificate: what is refused at start, and what a rotation may not break."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
import structlog.testing
from tests.support.certificates import Authority, Issued

from agenttx_server.access.certificate_rules import (
    CertificateRules,
    load_certificate_rules,
)
from agenttx_server.access.errors import Unauthenticated
from agenttx_server.access.identity import Role
from agenttx_server.api.certificate_files import CertificateFiles
from agenttx_server.api.certificates import CertificateRefused, RotatingCertificate
from agenttx_server.engine.operator_files import FileRefused


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def issued(authority: Authority, tmp_path: Path) -> Issued:
    return authority.issue(tmp_path, "server", dns=["localhost"])


def replace(issued: Issued, by: Issued) -> None:
    shutil.move(by.key, issued.key)
    shutil.move(by.certificate, issued.certificate)


def test_a_new_certificate_is_taken_once(authority: Authority, issued: Issued, tmp_path: Path):
    rotating = RotatingCertificate(CertificateFiles(issued.certificate, issued.key))
    assert rotating.changed() is None
    replace(issued, authority.issue(tmp_path, "next", dns=["localhost"]))
    assert rotating.changed() is not None
    assert rotating.changed() is None


def test_a_bad_new_certificate_leaves_the_old_one_and_is_told_once(
    authority: Authority, issued: Issued, tmp_path: Path
):
    rotating = RotatingCertificate(CertificateFiles(issued.certificate, issued.key))
    new = authority.issue(tmp_path, "next", dns=["localhost"])
    with structlog.testing.capture_logs() as told:
        shutil.copy(new.certificate, issued.certificate)  # its key is not there yet
        assert rotating.changed() is None
        assert rotating.changed() is None
        issued.certificate.write_text("nonsense")
        assert rotating.changed() is None
        issued.certificate.unlink()
        assert rotating.changed() is None
        replace(issued, authority.issue(tmp_path, "old", dns=["localhost"], good_for=-timedelta(hours=1)))
        assert rotating.changed() is None
        replace(issued, new)
        assert rotating.changed() is not None
    reasons = [line["reason"] for line in told if line["log_level"] == "error"]
    assert [
        word
        for reason, word in zip(
            reasons, ["not that of", "no PEM certificate", "can't be read", "not now"], strict=True
        )
        if word in reason
    ] == ["not that of", "no PEM certificate", "can't be read", "not now"]


@pytest.mark.parametrize("what", ["absent", "nonsense", "expired", "another's key", "bad authorities"])
def test_what_is_no_good_to_begin_with_is_refused(
    authority: Authority, issued: Issued, tmp_path: Path, what: str
):
    client_ca = None
    if what == "absent":
        issued.key.unlink()
    elif what == "nonsense":
        issued.key.write_text("nonsense")
    elif what == "expired":
        issued = authority.issue(tmp_path, "old", dns=["localhost"], good_for=-timedelta(hours=1))
    elif what == "another's key":
        shutil.copy(authority.issue(tmp_path, "next", dns=["x"]).key, issued.key)
    else:
        client_ca = tmp_path / "ca.pem"
        client_ca.write_text("nonsense")
    with pytest.raises(CertificateRefused) as refused:
        RotatingCertificate(CertificateFiles(issued.certificate, issued.key, client_ca))
    assert "\n" not in str(refused.value)


# --- whom clients' certificates stand for ---------------------------------------------------------


def rules_of(tmp_path: Path, text: str) -> CertificateRules:
    path = tmp_path / "certificates.toml"
    path.write_text(text)
    return load_certificate_rules(path)


def test_the_first_rule_that_fits_a_name_says_who_it_is(tmp_path: Path):
    rules = rules_of(
        tmp_path,
        """
        [[certificate]]
        name = "mailer.example.org"
        roles = ["worker"]
        tools = ["mail.*"]
        principal = "mailer"

        [[certificate]]
        name = "spiffe://example.org/agents/*"
        roles = ["agent"]
        """,
    )
    mailer = rules.identity_of(("mailer.example.org",))
    assert (mailer.principal, mailer.roles, mailer.tools) == ("mailer", {Role.WORKER}, ("mail.*",))
    agent = rules.identity_of(("other", "spiffe://example.org/agents/a1"))
    assert (agent.principal, agent.roles) == ("cert:spiffe://example.org/agents/a1", {Role.AGENT})
    for names in ((), ("evil.example.org",), ("spiffe://example.org/agent",)):
        with pytest.raises(Unauthenticated):
            rules.identity_of(names)


def test_without_rules_a_certificate_is_an_agent_of_its_own():
    who = CertificateRules().identity_of(("a.example.org",))
    assert (who.principal, who.roles) == ("cert:a.example.org", {Role.AGENT})
    with pytest.raises(Unauthenticated):
        CertificateRules().identity_of(())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"\[\[certificate\]\]"),
        ("[[certificate]]\nroles = ['agent']", "`name` is missing"),
        ("[[certificate]]\nname = 'a'", "`roles` is missing"),
        ("[[certificate]]\nname = 'a'\nroles = ['root']", "no role"),
        ("[[certificate]]\nname = 'a'\nroles = 'agent'", "`roles` is no list"),
        ("[[certificate]]\nname = 'a'\nroles = ['agent']\nrole = 1", "unknown key 'role'; known are"),
        ("[[certificate]]\nname = 'a*'\nroles = ['agent']\nprincipal = 'x'", "not to a pattern"),
        ("[[certificate]]\nname = 'a'\nroles = ['agent']\nprincipal = 'cert:b'", "reserved"),
        ("certificate = 1", r"\[\[certificate\]\]"),
        ("]", "not valid TOML"),
    ],
)
def test_rules_that_make_no_sense_are_refused(tmp_path: Path, text: str, says: str):
    with pytest.raises(FileRefused, match=says):
        rules_of(tmp_path, text)
