"""``agenttx backup`` and ``restore``: a SQLite database into one file, and back."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import AsJson
from agenttx_server.cli.output import print_json, print_line
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agenttx_server.settings import Settings
    from agenttx_server.store import CopiedDatabase

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    of_database = command_with_settings("data_dir", "database_url")
    app.command("backup", cls=of_database)(backup)
    app.command("restore", cls=of_database)(restore)


def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the database into FILE, also while a server uses it.

    It is the state of one moment: every step answered by then is in it. FILE has its name once it is complete,
    verified and on disk. For SQLite; PostgreSQL has tools of its own.
    """
    settings = _settings(context)
    with _refusals():
        from agenttx_server.store import back_up

        copied = back_up(settings.database_url, file.absolute(), replace=force)
    if as_json:
        print_json({"file": str(file.absolute()), **_json(copied)})
    else:
        print_line(f"Backed up to {file}: {_described(copied)}.")


def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup made by `agenttx backup`.")],
    as_json: AsJson = False,
) -> None:
    """Put a backup in the database's place; the database of before is kept beside it.

    Refused (exit code 78) while a server uses the database, and if FILE is no database of AgentTx, newer than
    this release, or damaged. What was done outside since the backup stays done, and effects that were
    delivered since are delivered again.
    """
    settings = _settings(context)
    with _refusals():
        from agenttx_server.store import restore as put_back

        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        restored = put_back(settings.database_url, file.absolute())
    if as_json:
        print_json(
            {
                "file": str(file.absolute()),
                **_json(restored.copied),
                "kept": str(restored.kept) if restored.kept else None,
            }
        )
        return
    print_line(f"Restored from {file}: {_described(restored.copied)}.")
    if restored.kept is not None:
        print_line(f"The database of before is {restored.kept}; remove it when you are sure.")


def _settings(context: typer.Context) -> Settings:
    from agenttx_server.settings import BadSettings, load_settings

    try:
        return load_settings(given_settings(context))
    except BadSettings as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad


@contextmanager
def _refusals() -> Iterator[None]:
    from agenttx_server.store import BackupRefused, DatabaseRefused

    try:
        yield
    except BackupRefused as refused:
        raise CommandRefused(str(refused), ExitCode.REFUSED) from refused
    except DatabaseRefused as refused:
        raise CommandRefused(str(refused), ExitCode.CANNOT_START) from refused
    except OSError as error:
        raise CommandRefused(f"{error.filename or 'a file'}: {error.strerror}", ExitCode.REFUSED) from error


def _described(copied: CopiedDatabase) -> str:
    count = copied.transactions
    return (
        f"{count:,} transaction{'' if count == 1 else 's'}, {copied.size_bytes / (1 << 20):,.1f} MiB, "
        f"schema version {copied.schema_version}"
    )


def _json(copied: CopiedDatabase) -> dict[str, object]:
    return {
        "schema_version": copied.schema_version,
        "database_id": copied.database_id,
        "commit_version": copied.commit_version,
        "transactions": copied.transactions,
        "size_bytes": copied.size_bytes,
    }
