"""Which MCP servers are mounted and what is held of their tools: what makes no sense is refused in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agenttx_server.mcp_servers import mcp_servers
from agenttx_server.settings import BadSettings, load_settings

PAGE = Path(__file__).resolve().parents[3] / "docs" / "mcp.md"


def rules(tmp_path: Path, text: str, suffix: str = ".toml") -> Path:
    file = tmp_path / f"rules{suffix}"
    file.write_text(text)
    return file


def test_a_command_and_a_url_are_told_apart(tmp_path):
    started, reached = mcp_servers(["a=npx -y 'my server'", "b=https://h/mcp"], None, {})
    assert started.command == ("npx", "-y", "my server")
    assert reached.url == "https://h/mcp"


def test_json_says_the_same_as_toml(tmp_path):
    toml = rules(tmp_path, "[servers.a.tools.x]\nundo = { tool = 'y' }")
    text = json.dumps({"servers": {"a": {"tools": {"x": {"undo": {"tool": "y"}}}}}})
    assert mcp_servers(["a=b"], toml, {}) == mcp_servers(["a=b"], rules(tmp_path, text, ".json"), {})


def test_a_variable_is_filled_in_and_shown_nowhere(tmp_path):
    (server,) = mcp_servers(["a=b"], rules(tmp_path, "[servers.a]\nenv = { K = '$S' }"), {"S": "s3cret"})
    assert server.rules.env == {"K": "s3cret"}
    assert "s3cret" not in repr(server)


@pytest.mark.parametrize(
    ("entries", "text", "says"),
    [
        (["a"], "", "entry 1 is not NAME=COMMAND or NAME=URL"),
        (["a.b=c"], "", "entry 1 is not NAME=COMMAND"),
        (["a=b", "a=c"], "", "names server 'a' twice"),
        (["a='b"], "", "the command of server 'a' can't be read"),
        (["a=b"], "[servers.c]", "servers.c is no server that is mounted"),
        (
            ["a=b"],
            "[servers.a.tools.x]\neffects = 'safe'",
            "servers.a.tools.x.effects: Input should be 'read_only'",
        ),
        (["a=b"], "[servers.a.tools.x]\neffects = 'transactional'", "can't be transactional"),
        (["a=b"], "[servers.a.tools.x]\neffects = 'compensatable'", "compensatable needs undo"),
        (["a=b"], "[servers.a.tools.x]\neffects = 'read_only'\nundo = { tool = 'y' }", "undo goes with"),
        (["a=b"], "[servers.a.tools.x]\nretries = 1", "retries go with"),
        (["a=b"], "[servers.a.tools.x]\neffect = 'read_only'", "Extra inputs are not permitted"),
        (["a=b"], "[servers.a]\nenv = { K = '$S' }", "env.K names the variable S, which is not set"),
        (["a=b"], "[servers.a]\nheaders = { K = 'v' }", "servers.a: it is started; headers are for"),
        (
            ["a=https://h"],
            "[servers.a]\nenv = { K = 'v' }",
            "servers.a: it is reached by URL; env and cwd are for",
        ),
        (["a=b"], "[servers", "rules.toml is not valid TOML"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, entries, text, says):
    with pytest.raises(ValueError, match=r"^.*$") as refused:
        mcp_servers(entries, rules(tmp_path, text), {})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_settings_refuse_it_in_their_one_line(tmp_path):
    with pytest.raises(BadSettings, match="mcp: entry 1 is not NAME=COMMAND"):
        load_settings({"mcp": ("=s3cret",), "data_dir": tmp_path})


def test_a_variable_has_a_server_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTTX_MCP", "a=b --c=d,e\nf=https://g")
    assert [server.name for server in load_settings({"data_dir": tmp_path}).mcp_servers] == ["a", "f"]


def test_the_documented_rules_are_understood(tmp_path):
    text = PAGE.read_text().partition("```toml\n")[2].partition("```")[0]
    (server,) = mcp_servers(["github=x"], rules(tmp_path, text), {"GITHUB_TOKEN": "t"})
    assert server.rules.tools["create_issue"].undo.tool == "close_issue"
