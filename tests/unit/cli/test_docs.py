"""docs/cli.md says what there is, and what any page has a person type is understood."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest

from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.command_line import main

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "cli.md").read_text()
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


_GROUPS = ("tx", "steps", "compensations", "effects", "graph", "pipeline", "lineage", "mcp")


def documented_commands() -> list[str]:
    """Every call of agenttx in the pages' shell blocks, without what is piped in or out."""
    text = "\n".join(page.read_text() for page in PAGES).replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    # At the beginning of a command: "agenttx" is also a name space, a user and a directory.
    calls = re.findall(r"(?:^|[;|(] ?|-- |=\S+ )agenttx ([^#|<>;\n]+)", "".join(blocks), re.MULTILINE)
    return sorted({call.strip() for call in calls})


@pytest.mark.parametrize("command", documented_commands())
def test_every_documented_call_is_understood(capsys, command):
    """With --help at its end a call is parsed and not carried out; a flag that there is not is an error all the same."""
    code = main([*shlex.split(command), "--help"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_a_call_that_is_not_understood_would_be_noticed(capsys):
    assert main(["tx", "list", "--no-such-flag", "--help"]) == ExitCode.USAGE


def test_the_documented_rule_of_ones_own_gives_the_hint_that_it_says(capsys, monkeypatch, tmp_path):
    (rules,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "rules.toml").write_text(rules)
    error = "HTTP 422: billing rejected amount_cents: over the limit of 500"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(error.encode())))

    assert main(["hint", "--explain", "--hint-rules-file", str(tmp_path / "rules.toml")]) == ExitCode.OK

    told = capsys.readouterr().out
    assert told.startswith("Hint: amount_cents is over the billing limit of 500. Use a smaller amount.\n")
    assert "keys: amount_cents\n" in told


def test_every_command_is_documented(capsys):
    for group, prefix in (
        ((), "agenttx "),
        (("tx",), "agenttx tx "),
        (("steps",), "agenttx steps "),
        (("compensations",), "agenttx compensations "),
        (("effects",), "agenttx effects "),
        (("graph",), "agenttx graph "),
        (("pipeline",), "agenttx pipeline "),
        (("lineage",), "agenttx lineage "),
        (("mcp",), "agenttx mcp "),
        (("token",), "agenttx token "),
        (("tenant",), "agenttx tenant "),
        (("audit",), "agenttx audit "),
        (("encryption",), "agenttx encryption "),
    ):
        main([*group, "--help"])
        commands = re.findall(r"^│ (\w+) ", capsys.readouterr().out.partition("Commands")[2], re.MULTILINE)
        assert commands
        assert [
            name
            for name in commands
            if f"`{prefix}{name}" not in PAGE and (prefix != "agenttx " or name not in _GROUPS)
        ] == []


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_exit_code_is_documented(code):
    assert f"\n| {code.value} | " in PAGE
