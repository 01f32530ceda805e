"""The flags of ``agenttx serve``: one for each setting, made from the settings' own fields.

Values go to the settings as text, and only if the flag was given: the variables, the checks and the
wording of what is wrong are the settings' business, so that a flag and its variable can't differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from agenttx_server.cli.help_text import Command

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["command_with_settings", "given_settings"]

# The first setting of each panel of the help; those after it are in the same panel.
PANELS: Mapping[str, str] = {
    "listen": "Where things are",
    "log_format": "Log",
    "metrics_listen": "Metrics and traces",
    "max_local_depth": "Rollback policy of transactions that bring none",
    "step_timeout_seconds": "Times",
    "max_agent_id_bytes": "Limits",
    "sqlite_synchronous": "Resources",
}
_OTHER_PANEL = "Options"


def command_with_settings(*names: str) -> type[TyperCommand]:
    """Return a command class with a flag for each setting, or for the named ones only.

    The settings are imported when the flags are needed, which the help of ``agenttx`` itself isn't.
    """

    class CommandWithSettings(Command):
        def get_params(self, ctx: Any) -> Any:
            return [*_flags(names), *super().get_params(ctx)]

        def invoke(self, ctx: Any) -> Any:
            # The callback's own signature knows nothing of these flags; it asks for them by given_settings.
            own = {parameter.name for parameter in self.params}
            ctx.meta[__name__] = {
                name: value
                for name, value in ctx.params.items()
                if name not in own and value not in (None, (), [])
            }
            ctx.params = {name: value for name, value in ctx.params.items() if name in own}
            return super().invoke(ctx)

    return CommandWithSettings


def given_settings(context: typer.Context) -> dict[str, Any]:
    """Return the settings that were given as flags, by their names."""
    given: dict[str, Any] = context.meta[__name__]
    return given


@cache
def _flags(names: tuple[str, ...]) -> tuple[Any, ...]:
    """Have typer make the options of a function that takes every setting as a keyword."""
    from agenttx_server.settings import Settings

    fields = Settings.model_fields

    def settings(**values: Any) -> None: ...

    settings.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=_flag(name, fields[name], panel),
            )
            for name, panel in _with_panels(fields)
            if not names or name in names
        ]
    )
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": []}, add_help_option=False)(settings)
    return tuple(typer.main.get_command(app).params)


def _with_panels(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    panel = _OTHER_PANEL
    for name in names:
        panel = PANELS.get(name, panel)
        yield name, panel


def _flag(name: str, field: FieldInfo, panel: str) -> Any:
    flag = "--" + name.replace("_", "-")
    is_switch = field.annotation is bool
    several = get_origin(field.annotation) is tuple
    declaration = f"{flag}/--no-{flag.removeprefix('--')}" if is_switch else flag
    option = typer.Option(
        declaration,
        help=_help(name, field),
        metavar="" if is_switch else _metavar(name, field),
        show_default=False,
        rich_help_panel=panel,
    )
    if is_switch:
        return Annotated[bool | None, option]
    return Annotated[list[str] | None if several else str | None, option]


def _help(name: str, field: FieldInfo) -> str:
    from agenttx_server.settings import ENVIRONMENT_PREFIX

    description = (field.description or "").replace("[", r"\[")
    default = _default(name, field)
    stated = f" = {default}" if default else ""
    return rf"{description} [dim yellow]\[{ENVIRONMENT_PREFIX}{name.upper()}{stated}][/dim yellow]"


def _metavar(name: str, field: FieldInfo) -> str:
    """Return what kind of value is wanted: the choices, or a word with its bounds."""
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    word = (
        _WORDS.get(name)
        or ("FILE" if name.endswith("_file") else None)
        or _KINDS.get(field.annotation, "TEXT")
    )
    lowest, highest = _bounds(field)
    if highest is not None:
        return f"{word} {lowest}..{highest}"
    return word if lowest is None else f"{word} {lowest}.."


_WORDS: Mapping[str, str] = {
    "listen": "HOST:PORT",
    "unix_socket_mode": "OCTAL",
    "data_dir": "DIR",
    "database_url": "URL",
    "fs_root": "DIR",
    "fs_backup_dir": "DIR",
    "webhooks": "CHANNEL=URL",
    "webhook_authorization": "CHANNEL=VALUE",
    "tools": "MODULE:OBJECT",
    "mcp": "NAME=COMMAND|URL",
    "reducers": "MODULE:OBJECT",
    "tls_certificate": "FILE",
    "tls_key": "FILE",
    "tls_client_ca": "FILE",
}
_KINDS: Mapping[Any, str] = {int: "INTEGER", float: "NUMBER", Decimal: "NUMBER"}


def _bounds(field: FieldInfo) -> tuple[str | None, str | None]:
    lowest = highest = None
    for limit in field.metadata:
        for bound in ("ge", "gt"):
            if (value := getattr(limit, bound, None)) is not None:
                lowest = f"{'>' if bound == 'gt' else ''}{value}"
        if (value := getattr(limit, "le", None)) is not None:
            highest = str(value)
    return lowest, highest


def _default(name: str, field: FieldInfo) -> str:
    value = field.default
    if value in (None, "", (), PurePath()):
        return ""  # The description says what is used then.
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:o}" if name == "unix_socket_mode" else f"{value}{_in_mib(name, value)}"


def _in_mib(name: str, value: Any) -> str:
    whole, rest = divmod(value, 1 << 20) if name.endswith("_bytes") else (0, 0)
    return f", {whole} MiB" if whole and not rest else ""
