"""`agenttx serve` and `migrate` as processes: settings, refusals, the end."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_calls import run_to_end, start


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], dict[str, Any]]]]:
    """Start servers and return them with the log line that says that they serve."""
    started: list[subprocess.Popen[str]] = []

    def serving(*flags: str, **variables: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        process = start("serve", *flags, **variables)
        started.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if '"serving"' in line:
                return process, json.loads(line)
        raise AssertionError(f"the server ended with {process.wait()}")

    yield serving
    for process in started:
        process.kill()
        process.communicate()


def test_a_server_serves_as_its_flags_say_and_ends_in_order(serve, tmp_path):
    process, line = serve(
        "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "d"), "--log-format", "json"
    )
    assert run_to_end("health", "--address", line["address"]).code == 0
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert '"stopped"' in rest
    assert (tmp_path / "d" / "agenttx.db").exists()


def test_flags_come_before_variables(serve, tmp_path):
    _, line = serve(
        "--data-dir",
        str(tmp_path / "flag"),
        AGENTTX_DATA_DIR=str(tmp_path / "variable"),
        AGENTTX_LISTEN="127.0.0.1:0",
        AGENTTX_LOG_FORMAT="json",
    )
    assert line["data_dir"] == str(tmp_path / "flag")
    assert line["address"].startswith("127.0.0.1:")
    assert not (tmp_path / "variable").exists()


def test_own_tools_can_come_from_a_variable(serve, tmp_path):
    _, line = serve(
        "--listen=127.0.0.1:0", "--data-dir", str(tmp_path / "d"), AGENTTX_TOOLS="tests.support.sample_tools"
    )
    assert run_to_end("tools", "sample.echo", "--address", line["address"]).code == 0


def test_bad_settings_are_refused_in_one_line_that_names_all_of_them(tmp_path):
    outcome = run_to_end(
        "serve",
        "--data-dir",
        str(tmp_path / "d"),
        "--listen",
        "nope",
        AGENTTX_MAX_LOCAL_DEPTH="99",
    )
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert "--listen" in outcome.err
    assert "AGENTTX_MAX_LOCAL_DEPTH" in outcome.err
    assert not (tmp_path / "d").exists()


def test_a_flag_that_there_is_not_is_refused(tmp_path):
    outcome = run_to_end("serve", "--data-dirr", str(tmp_path))
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1


def test_an_address_in_use_is_refused_with_exit_code_78(serve, tmp_path):
    _, line = serve("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "one"))
    outcome = run_to_end("serve", "--listen", line["address"], "--data-dir", str(tmp_path / "two"))
    assert outcome.code == 78
    assert line["address"] in outcome.err
    assert "stop that one, or give another --listen (with port 0" in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_second_server_on_one_database_is_refused_with_exit_code_78(serve, tmp_path):
    serve("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "d"))
    outcome = run_to_end("serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "d"))
    assert outcome.code == 78
    assert "is in use by process" in outcome.err
    assert "stop the other one, or give another --data-dir" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("tools", ["no_such_module:x", "json:nope"])
def test_tools_that_can_not_be_loaded_are_refused_with_exit_code_78(tmp_path, tools):
    outcome = run_to_end(
        "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "d"), "--tools", tools
    )
    assert outcome.code == 78
    assert outcome.err.count("\n") == 1


def test_hint_rules_that_are_wrong_are_refused_with_exit_code_78(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "own.rule"\ncategory = "no such category"\n')
    outcome = run_to_end(
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(tmp_path / "d"),
        "--hint-rules-file",
        str(rules),
    )
    assert outcome.code == 78
    assert "rules.toml" in outcome.err
    assert outcome.err.count("\n") == 1


def test_migrate_makes_a_database_and_does_nothing_the_second_time(tmp_path):
    first = run_to_end("migrate", "--data-dir", str(tmp_path / "d"), "--json")
    again = run_to_end("migrate", "--data-dir", str(tmp_path / "d"), "--json")
    assert first.code == again.code == 0
    assert first.json == again.json
    assert set(first.json) == {"schema_version"}
    assert (tmp_path / "d" / "agenttx.db").exists()


def test_migrate_is_refused_while_a_server_has_the_database(serve, tmp_path):
    serve("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "d"))
    outcome = run_to_end("migrate", "--data-dir", str(tmp_path / "d"))
    assert outcome.code == 78
    assert "is in use by process" in outcome.err
    assert "stop the other one, or give another --data-dir" in outcome.err


def test_migrate_refuses_what_is_no_database(tmp_path):
    (tmp_path / "agenttx.db").write_text("not a database, but long enough to be looked at " * 100)
    outcome = run_to_end("migrate", "--data-dir", str(tmp_path))
    assert outcome.code == 78
    assert outcome.err.count("\n") == 1


def test_a_directory_that_can_not_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    outcome = run_to_end("migrate", "--data-dir", str(tmp_path / "file" / "d"))
    assert outcome.code == 78
    assert "can't make the directory" in outcome.err
