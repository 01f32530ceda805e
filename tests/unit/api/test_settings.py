"""Settings: what wins over what, what is derived, and how bad ones are refused."""

from decimal import Decimal
from pathlib import Path

import pytest

from agenttx_server.listen_address import ListenAddress
from agenttx_server.settings import BadSettings, Settings, load_settings


@pytest.fixture(autouse=True)
def no_variables(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"AGENTTX_{name.upper()}", raising=False)


def test_flags_win_over_variables_and_variables_over_defaults(monkeypatch):
    monkeypatch.setenv("AGENTTX_DRAIN_TIMEOUT_SECONDS", "7")
    monkeypatch.setenv("AGENTTX_TOOL_THREADS", "9")

    settings = load_settings({"drain_timeout_seconds": 3})

    assert settings.drain_timeout_seconds == 3
    assert settings.tool_threads == 9
    assert settings.step_timeout_seconds == 30


def test_a_flag_that_is_none_was_not_given(monkeypatch):
    monkeypatch.setenv("AGENTTX_LISTEN", "127.0.0.1:4000")

    assert load_settings({"listen": None}).listen == "127.0.0.1:4000"


def test_an_empty_variable_was_not_set(monkeypatch):
    monkeypatch.setenv("AGENTTX_TOOL_THREADS", "")

    assert load_settings().tool_threads == 32


def test_what_is_not_placed_lies_in_the_data_directory(tmp_path):
    settings = load_settings({"data_dir": "here"})

    assert settings.data_dir == tmp_path / "here"
    assert settings.database_url == f"sqlite:///{tmp_path}/here/agenttx.db"
    assert settings.fs_root == tmp_path / "here" / "sandbox"
    assert settings.outbox_file == tmp_path / "here" / "outbox.jsonl"


def test_a_variable_places_something_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTTX_FS_ROOT", "files")

    assert load_settings().fs_root == tmp_path / "files"


def test_a_stray_dotenv_file_changes_nothing(tmp_path):
    (tmp_path / ".env").write_text("AGENTTX_TOOL_THREADS=5\n")

    assert load_settings().tool_threads == 32


def test_tools_in_a_variable_are_separated_by_commas(monkeypatch):
    monkeypatch.setenv("AGENTTX_TOOLS", "one:TOOLS, two:TOOLS,")

    assert load_settings().tools == ("one:TOOLS", "two:TOOLS")


def test_the_budget_factor_is_the_decimal_as_written(monkeypatch):
    monkeypatch.setenv("AGENTTX_REPLAY_BUDGET_FACTOR", "0.1")

    assert load_settings().replay_budget_factor == Decimal("0.1")


def test_settings_can_not_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load_settings().listen = "127.0.0.1:1"  # type: ignore[misc]


def test_every_bad_setting_is_named_in_one_line(monkeypatch):
    monkeypatch.setenv("AGENTTX_MAX_LOCAL_DEPTH", "17")
    monkeypatch.setenv("AGENTTX_LOG_FORMAT", "xml")

    with pytest.raises(BadSettings) as refused:
        load_settings({"listen": "nowhere", "drain_timeout_seconds": -1, "no_such_setting": 1})

    line = str(refused.value)
    assert "\n" not in line
    for named in (
        "--listen: 'nowhere' is neither HOST:PORT nor unix:PATH",
        "--drain-timeout-seconds: ",
        "--no-such-setting: ",
        "AGENTTX_MAX_LOCAL_DEPTH: ",
        "AGENTTX_LOG_FORMAT: ",
    ):
        assert named in line, line


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"workers": 2}, "--workers: several need a PostgreSQL database"),
        ({"fs_root": "/", "data_dir": "/d"}, "--fs-root: / holds /d/"),
        (
            {"tls_key": "/k"},
            "--tls-key: the certificate and its key belong together; give tls_certificate too",
        ),
        (
            {"tls_certificate": "/c"},
            "--tls-certificate: the certificate and its key belong together; give tls_key",
        ),
        ({"tls_client_ca": "/c"}, "--tls-client-ca: clients' certificates need TLS"),
        ({"certificates_file": "/c"}, "--certificates-file: there are certificates of clients only with"),
        (
            {"jwt_issuer": "i", "jwt_keys": "k"},
            "AGENTTX_JWT_AUDIENCE: jwt_issuer, jwt_audience, jwt_keys belong",
        ),
        ({"jwt_algorithms": ["none"]}, "--jwt-algorithms: give some of RS256"),
        (
            {"jwt_issuer": "i", "jwt_audience": "a", "jwt_keys": "http://h/k"},
            "--jwt-keys: give a file or an https address",
        ),
        ({"webhook_authorization": ["mail=x"]}, "AGENTTX_WEBHOOKS: "),
        ({"mcp": ["a"]}, "--mcp: entry 1 is not NAME=COMMAND"),
        ({"mcp_rules_file": "/none.toml"}, "--mcp-rules-file: /none.toml can't be read: No such file"),
        (
            {"mcp": ["a=b"], "mcp_rules_file": "strange.toml"},
            "--mcp-rules-file: {here}/strange.toml: servers.c is no",
        ),
        (
            {"mcp": ["c=b"], "mcp_rules_file": "strange.toml"},
            "strange.toml: servers.c: env.K names the variable",
        ),
        ({"metrics_listen": "unix:/x"}, "--metrics-listen: is no HOST:PORT"),
        ({"otlp_endpoint": "nowhere"}, "--otlp-endpoint: is no address such as"),
        ({"http_private_networks": "10.0.0.0/99"}, "--http-private-networks: "),
        ({"http_allow": "a b"}, "--http-allow: "),
    ],
)
def test_what_does_not_fit_blames_the_setting_that_is_to_be_changed(tmp_path, given, told):
    (tmp_path / "strange.toml").write_text("[servers.c.env]\nK = '$AGENTTX_NO_SUCH'")

    with pytest.raises(BadSettings) as refused:
        load_settings(given)

    assert told.format(here=tmp_path) in str(refused.value)
    assert "AGENTTX_SETTINGS" not in str(refused.value)


def test_every_setting_is_described():
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_a_bad_value_is_not_repeated_where_it_may_be_a_secret():
    with pytest.raises(BadSettings) as refused:
        load_settings({"database_url": "postgres:hunter2"})

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("inside", ["database_url", "outbox_file"])
def test_tools_can_not_reach_the_servers_own_files(tmp_path, inside):
    values = {"database_url": f"sqlite:///{tmp_path}/files/x.db", "outbox_file": tmp_path / "files" / "x"}

    with pytest.raises(BadSettings, match="fs-root"):
        load_settings({"fs_root": tmp_path / "files", inside: values[inside]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:50051", ListenAddress("127.0.0.1", 50051)),
        ("localhost:0", ListenAddress("localhost", 0)),
        ("[::1]:80", ListenAddress("::1", 80)),
        ("unix:/run/agenttx.sock", ListenAddress(socket_path=Path("/run/agenttx.sock"))),
        ("unix:///run/agenttx.sock", ListenAddress(socket_path=Path("/run/agenttx.sock"))),
    ],
)
def test_listen_addresses(text, expected):
    address = ListenAddress.parse(text)

    assert address == expected
    assert ListenAddress.parse(str(address)) == address


@pytest.mark.parametrize("port", ["65536", "99999", "9" * 5000])
def test_a_port_out_of_range_is_told_the_range(port):
    with pytest.raises(ValueError, match="ports go from 0, which lets the system choose, to 65535"):
        ListenAddress.parse(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "50051",
        ":50051",
        "host:",
        "host:65536",
        "host:-1",
        "host:5x",
        "::1:50051",
        "unix:",
        "unix:/" + "x" * 107,
    ],
)
def test_addresses_that_are_none(text):
    with pytest.raises(ValueError, match=r".+"):
        ListenAddress.parse(text)


@pytest.mark.parametrize(("given", "mode"), [("660", 0o660), ("0o600", 0o600), ("0777", 0o777)])
def test_a_socket_mode_is_octal(given, mode):
    assert load_settings({"unix_socket_mode": given}).unix_socket_mode == mode


@pytest.mark.parametrize("given", ["", "8", "1000", "rw"])
def test_a_socket_mode_that_is_none(given):
    with pytest.raises(BadSettings, match="unix-socket-mode"):
        load_settings({"unix_socket_mode": given})


HOOK = "https://hooks.example.org/t/s3cr3t"


def test_webhooks_are_given_by_channel(monkeypatch):
    monkeypatch.setenv("AGENTTX_WEBHOOKS", f"mail={HOOK}, *=http://10.0.0.7:8080/effects?a=b")
    monkeypatch.setenv("AGENTTX_WEBHOOK_AUTHORIZATION", "mail=Bearer abc==")

    targets = load_settings().webhooks_by_channel

    assert {channel: (target.url, target.authorization) for channel, target in targets.items()} == {
        "mail": (HOOK, "Bearer abc=="),
        "*": ("http://10.0.0.7:8080/effects?a=b", ""),
    }


def test_webhooks_may_be_given_as_flags_one_by_one():
    settings = load_settings({"webhooks": [f"mail={HOOK}", f"sms={HOOK}"]})

    assert set(settings.webhooks_by_channel) == {"mail", "sms"}


def test_credentials_may_go_to_this_machine_in_the_clear():
    for host in ("localhost", "127.0.0.1:99", "[::1]:99"):
        settings = load_settings(
            {"webhooks": [f"mail=http://{host}/x"], "webhook_authorization": ["mail=Bearer s3cr3t"]}
        )
        assert settings.webhooks_by_channel["mail"].authorization == "Bearer s3cr3t"


@pytest.mark.parametrize(
    ("webhooks", "authorization", "problem"),
    [
        ([HOOK], [], "CHANNEL=URL"),
        (["mail="], [], "CHANNEL=URL"),
        (["mail=ftp://hooks.example.org/s3cr3t"], [], "channel 'mail' is no URL"),
        (["mail=https:///s3cr3t"], [], "channel 'mail' is no URL"),
        (["mail=https://h:70000/s3cr3t"], [], "channel 'mail' is no URL"),
        (["mail=https://h/s3cr3t\n"], ["s3cr3t=="], "a channel without a webhook; those with one: mail"),
        ([f"mail={HOOK}", f"mail={HOOK}"], [], "channel 'mail' twice"),
        ([f"mail={HOOK}"], ["Bearer s3cr3t="], "CHANNEL=VALUE"),
        ([f"mail={HOOK}"], ["mail=Bearer\ns3cr3t"], "no header's value"),
        (["mail=http://hooks.example.org/s3cr3t"], ["mail=Bearer s3cr3t"], "unencrypted"),
    ],
)
def test_bad_webhooks_are_refused_and_nothing_secret_is_said(webhooks, authorization, problem):
    with pytest.raises(BadSettings) as refused:
        load_settings({"webhooks": webhooks, "webhook_authorization": authorization})

    assert problem in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


def test_secrets_are_no_part_of_what_settings_look_like():
    settings = load_settings({"webhooks": [f"mail={HOOK}"], "webhook_authorization": ["mail=Bearer s3cr3t"]})

    assert "s3cr3t" not in repr(settings)
    assert "s3cr3t" not in repr(settings.webhooks_by_channel)
