"""`agenttx mcp config`, and what `agenttx mcp` refuses before it serves."""

from __future__ import annotations

import json
import shlex

import pytest

from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.command_line import main


def configured(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["mcp", "config", *arguments]) == ExitCode.OK
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("client", "key"),
    [
        ("claude-desktop", "mcpServers"),
        ("cursor", "mcpServers"),
        ("vscode", "servers"),
        ("generic", "mcpServers"),
    ],
)
def test_the_configuration_starts_this_program_at_that_server(capsys, client, key):
    printed = json.loads(configured(capsys, "--client", client, "--address", "db:50051", "--tls"))
    entry = printed[key]["agenttx"]
    assert entry["args"] == ["mcp", "--address", "db:50051", "--tls"]
    assert entry["command"].startswith("/")
    assert ("type" in entry) == (client == "vscode")


def test_claude_code_is_configured_by_a_command(capsys):
    words = shlex.split(configured(capsys, "--client", "claude-code", "--address", "db:50051"))
    assert words[:5] == ["claude", "mcp", "add", "agenttx", "--"]
    assert words[6:] == ["mcp", "--address", "db:50051"]


def test_a_server_that_listens_is_configured_by_its_url(capsys):
    url = "http://127.0.0.1:8000/mcp"
    assert json.loads(configured(capsys, "--http", url)) == {"mcpServers": {"agenttx": {"url": url}}}
    assert configured(capsys, "--client", "claude-code", "--http", url).startswith(
        "claude mcp add --transport http "
    )
    assert configured(capsys, "--client", "claude-desktop", "--http", url) == url + "\n"


def test_a_token_is_not_printed(capsys, monkeypatch):
    monkeypatch.setenv("AGENTTX_TOKEN", "s3cret")
    assert main(["mcp", "config"]) == ExitCode.OK
    printed = capsys.readouterr()
    assert "s3cret" not in printed.out + printed.err
    assert "AGENTTX_TOKEN is not printed" in printed.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mcp", "config", "--client", "emacs"], "--client 'emacs' is none of claude-desktop, claude-code"),
        (["mcp", "config", "--http", "8000"], "--http '8000' is no URL"),
        (["mcp", "--http", "host"], "--http 'host' is no address"),
        (["mcp", "--http", "127.0.0.1:70000"], "is no address"),
        (["mcp", "--http", "0.0.0.0:8000"], "set AGENTTX_MCP_TOKEN"),
        (["mcp", "--http", "8000", "config"], "--http goes behind the command"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, monkeypatch, arguments, says):
    monkeypatch.delenv("AGENTTX_MCP_TOKEN", raising=False)
    assert main(arguments) == ExitCode.USAGE
    assert says in capsys.readouterr().err


def test_an_address_in_use_is_refused(capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["mcp", "--http", f"127.0.0.1:{port}"]) == ExitCode.CANNOT_START
    assert f"can't serve on 127.0.0.1:{port}" in capsys.readouterr().err
