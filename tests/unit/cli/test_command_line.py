"""The command line as a whole: how it ends, what it loads, and the commands that need no server."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.command_line import main

FOREIGN_KEY_ERROR = (
    'psycopg.errors.ForeignKeyViolation: insert or update on table "orders" violates foreign key constraint '
    '"orders_customer_id_fkey"\nDETAIL:  Key (customer_id)=(cus_120) is not present in table "customers".\n'
)
COMMANDS = ("serve", "health", "tools", "tx", "migrate", "backup", "restore", "hint", "version")
TX_COMMANDS = ("list", "show", "steps", "graph", "watch", "rewind", "abort")
HEAVY = (
    "grpc",
    "agenttx.client",
    "sqlalchemy",
    "alembic",
    "agenttx_server.settings",
    "rustworkx",
    "agenttx_server.engine",
)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_lists_the_commands(capsys):
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert all(f" {command} " in out for command in COMMANDS)


def test_help_of_tx_lists_its_commands_without_the_aliases(capsys):
    code, out, _ = run(capsys, "tx", "--help")
    assert code == 0
    assert all(f" {command} " in out for command in TX_COMMANDS)
    assert " ls " not in out


@pytest.mark.parametrize("command", [*COMMANDS, *(f"tx {name}" for name in TX_COMMANDS)])
def test_every_command_explains_itself(capsys, command):
    code, out, err = run(capsys, *command.split(), "--help")
    assert (code, err) == (0, "")
    assert "Usage: agenttx" in out


@pytest.mark.parametrize("command", ["", "serve", "health", "tx", "tx rewind"])
def test_help_shows_switches_without_a_value(capsys, command):
    _, out, _ = run(capsys, *command.split(), "--help")
    assert "--help" in out
    assert "bool" not in out


def test_without_a_command_the_help_is_shown_and_it_is_a_misuse(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (ExitCode.USAGE, "")
    assert "Commands" in out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nope",), "No such command 'nope'"),
        (("tx", "sho"), "Did you mean 'show'"),
        (("tx", "show"), "Missing argument"),
        (("tools", "--nope"), "No such option"),
        (("tx", "rewind", "id", "0"), "'STEP'"),
        (("tx", "list", "--label", "no-value"), "is not NAME=VALUE"),
        (("tx", "list", "--status", "foo"), "--status 'foo' is none of ACTIVE, EXECUTING, "),
        (("tx", "list", "--address", ""), "'' is no address: give HOST:PORT"),
        (("tx", "list", "-a", "127.0.0.1:99999"), "ports go from 1 to 65535"),
        (("tx", "steps", "x", "--step", str(2**32)), "step_id: "),
        (("tx", "list", "--since", "yesterday"), "is neither a span"),
        (("tx", "graph", "x", "--cause", "3", "id", "-f", "dot"), "--cause"),
        (("health", "--liveness", "--readiness"), "exclude one another"),
        (("health", "--address", "http://x"), "is no address"),
        (("health", "--ca", "/nowhere/ca.pem"), "ca can't be read"),
        (("health", "--cert", "/nowhere/c.pem"), "belong together"),
    ],
)
def test_a_misuse_is_one_line_on_stderr_and_exit_code_2(capsys, arguments, problem):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith("agenttx: ")
    assert problem in err
    assert err.count("\n") == 1


def test_a_fault_of_our_own_is_one_line_too(capsys, monkeypatch):
    monkeypatch.setattr("platform.python_version", lambda: 1 / 0)
    code, _, err = run(capsys, "version")
    assert code == ExitCode.INTERNAL
    assert "ZeroDivisionError" in err
    assert err.count("\n") == 1


def test_a_fault_of_our_own_shows_where_on_request(capsys, monkeypatch):
    monkeypatch.setattr("platform.python_version", lambda: 1 / 0)
    monkeypatch.setenv("AGENTTX_TRACEBACK", "1")
    _, _, err = run(capsys, "version")
    assert "Traceback" in err


def test_ctrl_c_is_quiet(capsys, monkeypatch):
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("platform.python_version", interrupted)
    assert run(capsys, "version") == (ExitCode.INTERRUPTED, "", "")


def test_version(capsys):
    code, out, _ = run(capsys, "version", "--json")
    assert code == 0
    assert set(json.loads(out)) == {"version", "python"}
    _, line, _ = run(capsys, "--version")
    assert line == f"agenttx {json.loads(out)['version']}\n"


def hint(capsys, monkeypatch, raw: bytes, *flags: str) -> str:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    code, out, err = run(capsys, "hint", *flags)
    assert (code, err) == (0, "")
    return out


def test_hint_cleans_what_it_reads(capsys, monkeypatch):
    out = hint(capsys, monkeypatch, FOREIGN_KEY_ERROR.encode())
    assert out.startswith("Hint: customer_id cus_120 is not present in table customers.")
    assert out.count("\n") == 1


def test_hint_as_json(capsys, monkeypatch):
    found = json.loads(hint(capsys, monkeypatch, FOREIGN_KEY_ERROR.encode(), "--json"))
    assert set(found) == {"text", "category", "key", "rule"}
    assert found["category"] == "foreign_key_violation"
    assert found["key"] == "customer_id"
    assert found["rule"]


def test_a_hint_without_a_rule_or_a_key_has_nulls(capsys, monkeypatch):
    found = json.loads(hint(capsys, monkeypatch, b"something odd happened", "--json"))
    assert found["key"] is None
    assert found["rule"] is None
    assert found["category"] == "unknown"


def test_hint_explains_itself(capsys, monkeypatch):
    out = hint(capsys, monkeypatch, FOREIGN_KEY_ERROR.encode(), "--explain")
    assert "category: foreign_key_violation" in out
    assert "keys: customer_id" in out
    assert "why: rule " in out


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe\x00", "日本".encode()])
def test_any_bytes_make_a_hint(capsys, monkeypatch, raw):
    assert hint(capsys, monkeypatch, raw).startswith("Hint: ")


@pytest.mark.parametrize("arguments", [["--help"], ["tx", "--help"], ["tx", "list", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments):
    """Half of a second is much for a help text, and gRPC, SQLAlchemy and the settings take as long."""
    script = (
        "import sys\n"
        "from agenttx_server.command_line import main\n"
        f"code = main({arguments!r})\n"
        f"sys.exit(code or ' '.join(name for name in {HEAVY!r} if name in sys.modules) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
