"""``agenttx encryption``: makes keys, counts what is sealed with each and seals anew, on the database itself."""

from __future__ import annotations

import base64
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line, printable
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

if TYPE_CHECKING:
    from agenttx_server.store import PayloadKeys

__all__ = ["add_to"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    of_database = command_with_settings("data_dir", "database_url", "encryption_keys_file")
    group.command("new-key")(new_key)
    group.command("status", cls=of_database)(status)
    group.command("rotate", cls=of_database)(rotate)


def new_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as 2026-12.")],
) -> None:
    """Print a new key as a line for the table `keys` of the file of keys; it is kept nowhere."""
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or len(name) > 32:
        raise CommandRefused("a key's name is 1 to 32 of A-Z a-z 0-9 _ -", ExitCode.USAGE)
    print_line(f'{name} = "{base64.b64encode(secrets.token_bytes(32)).decode()}"')


def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Count the values of the database under each key, and those that are plain. Reads all of it."""
    database_url, keys = _given(context)
    from agenttx_server.store import DatabaseRefused
    from agenttx_server.store.payload_rotation import count_by_key

    try:
        uses = count_by_key(database_url, keys)
    except DatabaseRefused as refused:
        raise CommandRefused(str(refused), ExitCode.CANNOT_START) from refused
    if as_json:
        print_json(
            [
                {
                    "key": use.key,
                    "values": use.values,
                    "active": use.key == keys.active,
                    "in_file": use.is_known,
                }
                for use in uses
            ]
        )
        return
    for use in uses:
        name = "plain" if use.key is None else printable(use.key)
        notes = ["active"] if use.key == keys.active else []
        notes += [] if use.is_known else ["not in the file of keys"]
        print_line(" ".join([f"{name}: {use.values:,}", *(f"({note})" for note in notes)]))


def rotate(context: typer.Context, as_json: AsJson = False) -> None:
    """Seal all values of the database with the active key; make them plain where the file says that none is.

    Servers may go on meanwhile, once all of them have the active key. It can be stopped and begun again at any time. A key
    that holds nothing any more may be taken out of the file.
    """
    database_url, keys = _given(context)
    from agenttx_server.store import DatabaseRefused
    from agenttx_server.store.payload_rotation import rotate as rotate_values

    done = 0

    def on_batch(table: str, values: int) -> None:
        nonlocal done
        done += values
        if sys.stderr.isatty():
            typer.echo(f"\r{done:,} values, {table}\033[K", err=True, nl=False)

    try:
        rotated = rotate_values(database_url, keys, on_batch=on_batch)
    except DatabaseRefused as refused:
        raise CommandRefused(str(refused), ExitCode.CANNOT_START) from refused
    finally:
        if done and sys.stderr.isatty():
            typer.echo("", err=True)
    if as_json:
        print_json(
            {
                "values": rotated.values,
                "whole": rotated.is_whole,
                "damaged": list(rotated.damaged),
                "forgotten": list(rotated.forgotten),
                "kept_for_servers": list(rotated.kept_for),
            }
        )
    else:
        print_line(f"{rotated.values:,} values were written anew.")
        if rotated.is_whole:
            under = "plain" if keys.active is None else f"sealed with {printable(keys.active)}"
            print_line(f"All values are {under}.")
        for name in rotated.forgotten:
            print_line(f"The key {printable(name)} holds nothing any more and may be taken out of the file.")
        for name in rotated.kept_for:
            print_line(
                f"The key {printable(name)} holds nothing, but a server that runs may still use it: "
                "start all servers anew with this file, then rotate again."
            )
    if rotated.damaged:
        raise CommandRefused(
            f"{len(rotated.damaged)} values can't be opened and stay as they are: {printable(rotated.damaged[0])}",
            ExitCode.REFUSED,
        )
    if not rotated.is_whole:
        raise CommandRefused(
            "a server still writes values otherwise: start all servers with this file of keys, then rotate again",
            ExitCode.REFUSED,
        )


def _given(context: typer.Context) -> tuple[str, PayloadKeys]:
    from agenttx_server.settings import BadSettings, load_settings

    try:
        settings = load_settings(given_settings(context))
    except BadSettings as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
    from agenttx_server.store import load_payload_keys

    path = settings.database_url.partition("///")[2]
    if settings.database_url.startswith("sqlite") and not Path(path).exists():
        raise CommandRefused(
            f"there is no database {settings.database_url}; give the server's own --data-dir or --database-url",
            ExitCode.USAGE,
        )
    if settings.encryption_keys_file is None:
        raise CommandRefused("name the file of keys: --encryption-keys-file", ExitCode.USAGE)
    try:
        return settings.database_url, load_payload_keys(settings.encryption_keys_file)
    except ValueError as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
