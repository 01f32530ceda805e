"""``agenttx tenant``: what tenants and their principals have stored, measured on the database itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line, print_text, printable
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

if TYPE_CHECKING:
    from agenttx_server.store import Measured

__all__ = ["add_to"]

_SHARED = "(shared)"


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("usage", cls=command_with_settings("data_dir", "database_url"))(usage)


def usage(
    context: typer.Context,
    tenant: Annotated[str, typer.Option(metavar="TENANT", help="This tenant alone. Default: all.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the bytes that tenants and their principals have stored, and in what.

    Reads all rows of the database, whether or not a server uses it. What a tenant's principals share, committed
    state and definitions, is told as (shared).
    """
    tenants = [one for one in _tenants(_measured(context)) if tenant in ("", one["tenant"])]
    if as_json:
        print_json({"tenants": tenants})
        return
    if not tenants:
        print_line("Nothing is stored.")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("TENANT", "PRINCIPAL", "BYTES", "OF"):
        table.add_column(heading, justify="right" if heading == "BYTES" else "left")
    for one in tenants:
        table.add_row(one["tenant"], "", f"{one['bytes']:,}", "")
        for item in one["principals"]:
            of = ", ".join(f"{part} {size:,}" for part, size in item["parts"].items())
            table.add_row("", printable(item["principal"]), f"{item['bytes']:,}", of)
    print_text(table)


def _measured(context: typer.Context) -> Measured:
    from agenttx_server.settings import BadSettings, load_settings

    try:
        settings = load_settings(given_settings(context))
    except BadSettings as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
    from agenttx_server.store import DatabaseRefused, measure_usage

    path = settings.database_url.partition("///")[2]
    if settings.database_url.startswith("sqlite") and not Path(path).exists():
        raise CommandRefused(
            f"there is no database {settings.database_url}; give the server's own --data-dir or --database-url",
            ExitCode.USAGE,
        )
    try:
        return measure_usage(settings.database_url)
    except DatabaseRefused as refused:
        raise CommandRefused(str(refused), ExitCode.CANNOT_START) from refused


def _tenants(measured: Measured) -> list[dict[str, Any]]:
    """Who stores most comes first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for owner, parts in measured.parts.items():
        tenant, _, principal = owner[1:].partition("/") if owner.startswith("@") else ("", "", owner)
        found.setdefault(tenant or "default", []).append(
            {
                "principal": principal or _SHARED,
                "bytes": sum(parts.values()),
                "parts": dict(sorted(parts.items())),
            }
        )
    told = [
        {
            "tenant": tenant,
            "bytes": sum(item["bytes"] for item in items),
            "principals": sorted(items, key=lambda item: (-item["bytes"], item["principal"])),
        }
        for tenant, items in found.items()
    ]
    return sorted(told, key=lambda one: (-one["bytes"], one["tenant"]))
