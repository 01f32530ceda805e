"""What the doctor says of directories, certificates and a database's report, and that each finding has a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.certificates import Authority

from agenttx_server.doctor import Finding, Level, disk
from agenttx_server.doctor.database import judge, look_at_database
from agenttx_server.doctor.disk import look_at_disk
from agenttx_server.doctor.rules import look_at_rules
from agenttx_server.doctor.transport import look_at_transport
from agenttx_server.settings import load_settings
from agenttx_server.store import DatabaseReport, LateThings

NOW = datetime.now(UTC)
NOW_US = int(NOW.timestamp() * 1_000_000)


def bad(findings: Iterable[Finding]) -> list[tuple[Level, str]]:
    """What is not OK; whatever isn't has a remedy, and what is has none."""
    told = list(findings)
    assert all(bool(one.remedy) == (one.level is not Level.OK) for one in told)
    return [(one.level, one.what) for one in told if one.level is not Level.OK]


# --- transport ------------------------------------------------------------------------------------------


def transport(now: datetime = NOW, **settings: object) -> list[Finding]:
    return list(look_at_transport(load_settings(dict(settings)), now))


def test_loopback_is_well_and_the_network_wants_tls() -> None:
    assert bad(transport()) == []
    assert bad(transport(listen="0.0.0.0:50051")) == [(Level.ERROR, "address")]
    assert bad(transport(listen="0.0.0.0:50051", allow_plaintext=True, anonymous="anyone")) == [
        (Level.WARNING, "address"),
        (Level.WARNING, "callers"),
    ]


@pytest.mark.parametrize(
    ("days", "level"), [(0, Level.WARNING), (2, Level.ERROR), (-1, Level.WARNING), (-60, Level.ERROR)]
)
def test_a_certificate_is_judged_by_its_term(tmp_path: Path, days: int, level: Level) -> None:
    issued = Authority().issue(tmp_path, "server")  # good from two days ago until tomorrow
    told = transport(NOW + timedelta(days=days), tls_certificate=issued.certificate, tls_key=issued.key)
    assert bad(told) == [(level, "TLS certificate")]


def test_a_long_term_is_well_and_a_foreign_key_is_not(tmp_path: Path) -> None:
    authority = Authority()
    long = authority.issue(tmp_path, "long", good_for=timedelta(days=300))
    other = authority.issue(tmp_path, "other")
    assert bad(transport(tls_certificate=long.certificate, tls_key=long.key)) == []
    assert bad(transport(tls_certificate=long.certificate, tls_key=other.key)) == [(Level.ERROR, "TLS key")]


def test_files_that_are_no_certificates_are_findings(tmp_path: Path) -> None:
    none, words = tmp_path / "none.pem", tmp_path / "words.pem"
    words.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    for path in (none, words):
        assert bad(transport(tls_certificate=path, tls_key=path)) == [(Level.ERROR, "TLS certificate")]


def test_keys_of_an_issuer_are_read_from_a_file_and_not_fetched(tmp_path: Path) -> None:
    issuer = {"jwt_issuer": "https://issuer", "jwt_audience": "agenttx"}
    assert bad(transport(jwt_keys="https://issuer.example/keys", **issuer)) == []
    keys = tmp_path / "jwks.json"
    assert bad(transport(jwt_keys=str(keys), **issuer)) == [(Level.ERROR, "JWT keys")]
    keys.write_text('{"keys": []}')
    assert bad(transport(jwt_keys=str(keys), **issuer)) == [(Level.ERROR, "JWT keys")]
    keys.write_text(
        '{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
    )
    told = transport(jwt_keys=str(keys), **issuer)
    assert bad(told) == []
    assert any(one.found.endswith("jwks.json, 1 key") for one in told)


# --- disk -----------------------------------------------------------------------------------------------


def on_disk(data_dir: Path, **settings: object) -> list[tuple[Level, str]]:
    return bad(look_at_disk(load_settings({"data_dir": data_dir, **settings})))


def test_directories_that_are_not_there_are_made_by_a_server_if_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on_disk(tmp_path / "new") == []
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert (Level.ERROR, "data directory") in on_disk(tmp_path / "new")
    assert (Level.ERROR, "data directory") in on_disk(tmp_path)


def test_a_file_in_a_directorys_place_and_a_directory_for_everybody_are_found(tmp_path: Path) -> None:
    (tmp_path / "sandbox").touch()
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups").chmod(0o777)
    assert on_disk(tmp_path) == [(Level.ERROR, "files' directory"), (Level.WARNING, "files' backups")]


@pytest.mark.parametrize(
    ("free", "level"), [(disk.TOO_LITTLE_BYTES - 1, Level.ERROR), (disk.LITTLE_BYTES - 1, Level.WARNING)]
)
def test_little_room_is_a_warning_and_hardly_any_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: Level
) -> None:
    real = os.statvfs(tmp_path)
    fields = {name: getattr(real, name) for name in dir(real) if name.startswith("f_")}
    fields |= {"f_frsize": 1, "f_bavail": free}
    monkeypatch.setattr(os, "statvfs", lambda path: type("Room", (), fields)())
    assert on_disk(tmp_path) == [(level, "disk")]


def test_a_key_for_everybody_is_found_unless_its_directory_keeps_others_out(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir(mode=0o755)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent.is_relative_to(tmp_path.parents[2]):
            parent.chmod(0o755)
    issued = Authority().issue(folder, "server")
    issued.key.chmod(0o644)
    named = {"tls_certificate": issued.certificate, "tls_key": issued.key}
    assert on_disk(tmp_path, **named) == [(Level.WARNING, "TLS key")]
    folder.chmod(0o700)
    assert on_disk(tmp_path, **named) == []
    issued.key.unlink()
    assert on_disk(tmp_path, **named) == [(Level.ERROR, "TLS key")]


# --- the database ---------------------------------------------------------------------------------------


def report(**fields: object) -> DatabaseReport:
    return DatabaseReport(**{"address": "SQLite database x", "revision": "1", "head_revision": "1", **fields})  # type: ignore[arg-type]


def test_a_database_that_is_not_there_or_well_needs_nothing(tmp_path: Path) -> None:
    assert bad(judge(report(revision=None), NOW_US)) == []
    assert bad(judge(report(newest_us=NOW_US), NOW_US)) == []
    assert bad(look_at_database(load_settings({"data_dir": tmp_path}), NOW)) == []
    assert list(tmp_path.iterdir()) == []


def test_an_older_version_is_a_warning_and_something_else_an_error(tmp_path: Path) -> None:
    assert bad(judge(report(revision="0"), NOW_US)) == [(Level.WARNING, "database")]
    (tmp_path / "agenttx.db").write_bytes(b"something else" * 1000)
    settings = load_settings({"data_dir": tmp_path})
    assert bad(look_at_database(settings, NOW)) == [(Level.ERROR, "database")]


@pytest.mark.parametrize("ahead", [3_000_000, -3_000_000])
def test_a_clock_that_is_off_is_found(ahead: int) -> None:
    assert bad(judge(report(time_ahead_us=ahead), NOW_US)) == [(Level.WARNING, "clock")]


def test_a_clock_that_was_set_back_is_found() -> None:
    assert bad(judge(report(newest_us=NOW_US + 60_000_000), NOW_US)) == [(Level.WARNING, "clock")]


def test_each_kind_of_what_stands_still_is_said_with_its_ids_and_age() -> None:
    kinds = ("in_doubt", "held", "late_undo", "unrecovered", "dead_effects")
    errors = {kind: LateThings(2, (f"{kind}-1", f"{kind}-2"), 0) for kind in kinds}
    told = list(judge(report(transactions=errors), NOW_US))
    assert bad(told) == [(Level.ERROR, "transactions")] * len(kinds)
    for kind in kinds:
        assert any(f"{kind}-1, {kind}-2" in one.found for one in told)
    kinds = ("overdue_effects", "approvals", "orphans", "abandoned")
    warnings = {kind: LateThings(9, ("one",), 1_700_000_000_000_000) for kind in kinds}
    told = list(judge(report(transactions=warnings), NOW_US))
    assert bad(told) == [(Level.WARNING, "transactions")] * len(kinds)
    assert all(
        one.found.endswith(": one, …, the oldest since 2023-11-14 22:13 UTC") for one in told if one.remedy
    )


def test_every_kind_that_a_report_has_is_judged() -> None:
    from agenttx_server.doctor.database import _KINDS
    from agenttx_server.store.database_report import _kinds

    assert set(_kinds(0, (), 0, 0, 0)) == set(_KINDS)


# --- files of rules -------------------------------------------------------------------------------------


RULES = (
    "tenants_file",
    "hint_rules_file",
    "approvals_file",
    "tool_secrets_file",
    "http_secrets_file",
    "certificates_file",
)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("text", [None, "this is [no TOML"])
def test_a_file_of_rules_that_a_start_would_refuse_is_found(
    tmp_path: Path, name: str, text: str | None
) -> None:
    path = tmp_path / "rules.toml"
    if text is not None:
        path.write_text(text)
        path.chmod(0o600)
    given: dict[str, object] = {"data_dir": tmp_path, name: path}
    if name == "http_secrets_file":
        assert bad(look_at_rules(load_settings(given))) == []  # nothing reads it without http_allow
        given["http_allow"] = ("api.example",)
    if name == "certificates_file":
        given |= dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca"), tmp_path / "x.pem")
    assert bad(look_at_rules(load_settings(given))) == [(Level.ERROR, "--" + name.replace("_", "-"))]


def test_modules_of_tools_are_looked_for_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doctored_tools.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    settings = load_settings({"tools": ("doctored_tools:TOOLS", "no_such_mod.tools:TOOLS")})
    assert bad(look_at_rules(settings)) == [(Level.ERROR, "--tools")]


def test_what_needs_a_package_that_is_not_installed_is_said_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = load_settings({"data_dir": tmp_path, "otlp_endpoint": "http://h:4317", "mcp": ("a=b",)})
    assert bad(look_at_rules(settings)) == []
    monkeypatch.setattr("agenttx_server.doctor.rules._is_installed", lambda package: False)
    told = list(look_at_rules(settings))
    assert bad(told) == [(Level.ERROR, "--otlp-endpoint"), (Level.ERROR, "--mcp")]
    assert "agenttx[server,otel]" in told[0].remedy
