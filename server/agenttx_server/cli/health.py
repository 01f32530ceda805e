"""``agenttx health``: whether a server serves, as an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("health")(connected(health))


def health(
    client: agenttx.Client,
    service: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One service only, such as agenttx.v1.AgentTxService; empty is the server as a whole.",
        ),
    ] = "",
    liveness: Annotated[
        bool, typer.Option("--liveness", help="Whether the process is alive: a restart would help if not.")
    ] = False,
    readiness: Annotated[
        bool, typer.Option("--readiness", help="Whether it takes calls now: not while it starts or drains.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask a server how it is: exit code 0 if it serves, 1 if it doesn't or doesn't answer.

    Fit for a container's health check: it waits for an answer no longer than --timeout.
    """
    import agenttx
    from agenttx.records import HealthStatus
    from agenttx_server.cli.error_advice import explain

    wanted = [name for name in (service, "liveness" * liveness, "readiness" * readiness) if name]
    if len(wanted) > 1:
        raise CommandRefused("--service, --liveness and --readiness exclude one another", ExitCode.USAGE)
    name = wanted[0] if wanted else ""
    problem = None
    status = HealthStatus.UNKNOWN
    try:
        status = client.health(name)
    except agenttx.RpcError as error:
        problem = explain(error)
    healthy = status is HealthStatus.SERVING
    if as_json:
        print_json({"address": client.address, "service": name, "status": status, "healthy": healthy})
    elif problem is None:
        print_line(f"{client.address}{f' {name}' if name else ''}: {status}")
    if problem is not None:
        raise CommandRefused(str(problem), ExitCode.REFUSED)
    if not healthy:
        raise typer.Exit(ExitCode.REFUSED)
