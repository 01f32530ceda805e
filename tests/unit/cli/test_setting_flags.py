"""The flags of serve and migrate follow the settings."""

from __future__ import annotations

import re

import pytest
import typer

from agenttx_server.cli.setting_flags import PANELS, command_with_settings, given_settings
from agenttx_server.settings import ENVIRONMENT_PREFIX, Settings


def parse(*arguments: str, names: tuple[str, ...] = ()) -> dict[str, object]:
    """Return what a command with the flags would hand to the settings."""
    given: dict[str, object] = {}

    def command(context: typer.Context) -> None:
        given.update(given_settings(context))

    app = typer.Typer(add_completion=False)
    app.command(cls=command_with_settings(*names))(command)
    typer.main.get_command(app)(list(arguments), standalone_mode=False)
    return given


def help_text(*names: str) -> str:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=command_with_settings(*names))(lambda: None)
    context = typer.main.get_command(app).make_context("serve", [], resilient_parsing=True)
    return " ".join(f"{parameter.opts} {parameter.help}" for parameter in context.command.get_params(context))


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_flag_a_variable_and_an_explanation(name: str):
    text = help_text(name)
    assert f"--{name.replace('_', '-')}" in text
    assert ENVIRONMENT_PREFIX + name.upper() in text
    description = Settings.model_fields[name].description
    assert description
    assert description in text.replace("\\[", "[")


def test_every_panel_of_the_help_begins_at_a_setting_that_there_is():
    assert set(PANELS) <= set(Settings.model_fields)


def test_nothing_is_given_unless_its_flag_was():
    assert parse() == {}


def test_values_go_to_the_settings_as_text_for_them_to_judge():
    assert parse("--listen", "nope", "--max-local-depth", "many") == {
        "listen": "nope",
        "max_local_depth": "many",
    }


def test_a_switch_can_be_given_both_ways():
    assert parse("--no-reflection") == {"reflection": False}
    assert parse("--reflection") == {"reflection": True}


def test_a_flag_that_may_be_given_several_times_collects():
    assert parse("--tools", "a:A", "--tools", "b:B") == {"tools": ["a:A", "b:B"]}


def test_variables_are_left_to_the_settings(monkeypatch):
    monkeypatch.setenv("AGENTTX_LISTEN", "127.0.0.1:1")
    assert parse() == {}


def test_a_command_can_have_some_of_the_flags_only():
    assert parse("--data-dir", "d", names=("data_dir", "database_url")) == {"data_dir": "d"}
    with pytest.raises(typer.TyperException, match="No such option"):
        parse("--listen", "x", names=("data_dir", "database_url"))


def test_defaults_are_shown_as_a_person_would_write_them():
    text = help_text("listen", "unix_socket_mode", "max_message_bytes", "reflection", "database_url")
    assert "[AGENTTX_LISTEN = 127.0.0.1:50051]" in text.replace("\\[", "[")
    assert "AGENTTX_UNIX_SOCKET_MODE = 660" in text
    assert "AGENTTX_MAX_MESSAGE_BYTES = 8388608, 8 MiB" in text
    assert "AGENTTX_REFLECTION = true" in text
    assert re.search(r"AGENTTX_DATABASE_URL\]", text)
