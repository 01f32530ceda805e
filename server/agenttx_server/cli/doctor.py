"""``agenttx doctor``: what may be wrong, and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line, printable
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

if TYPE_CHECKING:
    from agenttx_server.doctor import Finding

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", cls=command_with_settings())(doctor)


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at what a server with these settings has or would meet, and say what to do about each finding.

    Address and certificates, directories, disk, permissions, files of rules, the database and its version,
    clocks, and what stands still until somebody acts. Modules of tools are looked for and not imported. Give it the flags and variables of `agenttx serve`. Changes nothing,
    also while servers run. Exit code 0 if nothing is wrong, 1 if there is an ERROR.
    """
    from datetime import UTC, datetime

    from agenttx_server.settings import BadSettings, load_settings

    try:
        settings = load_settings(given_settings(context))
    except BadSettings as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
    from agenttx_server.doctor import Level, examine

    findings = examine(settings, datetime.now(UTC))
    is_well = all(finding.level is not Level.ERROR for finding in findings)
    if as_json:
        print_json({"healthy": is_well, "findings": findings})
    else:
        for finding in findings:
            _print(finding)
        print_line(_summary([finding.level.value for finding in findings]))
    if not is_well:
        raise typer.Exit(ExitCode.REFUSED)


def _print(finding: Finding) -> None:
    print_line(f"{finding.level:<8} {finding.what}: {printable(finding.found)}")
    if finding.remedy:
        print_line(f"{'':<8}   → {printable(finding.remedy)}")


def _summary(levels: list[str]) -> str:
    errors, warnings = levels.count("ERROR"), levels.count("WARNING")
    if not errors and not warnings:
        return "Nothing is wrong."
    return f"{errors} error{'' if errors == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}."
