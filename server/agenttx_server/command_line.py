"""The command ``agenttx``: its commands put together, and how it ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.core import TyperCommand

from agenttx_server.cli import (
    approvals,
    audit,
    backup,
    compensations,
    doctor,
    effects,
    encryption,
    graph,
    graph_runs,
    graph_watch,
    graphs,
    health,
    hint,
    lineage,
    mcp,
    migrate,
    pipelines,
    rollback,
    serve,
    steps,
    tenant,
    token,
    tools,
    transactions,
    version,
    watch,
)
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.help_text import Command, Group
from agenttx_server.cli.output import ReaderLeft, printable

__all__ = ["main"]

PROGRAM = "agenttx"
TRACEBACK_VARIABLE = "AGENTTX_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the process's exit code.

    Args:
        arguments: What follows the program's name; None for the process's own.
    """
    # gRPC's core writes to stderr in a form of its own, and reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    _write_anything()
    try:
        outcome = typer.main.get_command(_app())(arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else ExitCode.OK
    except typer.TyperException as refused:
        # Without a message it is a group called without a command: its help was printed.
        return _complain(_usage(refused), ExitCode.USAGE) if refused.format_message() else ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, ReaderLeft):
        # The interpreter's own flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        return _explained(error)


def _app() -> typer.Typer:
    app = typer.Typer(
        cls=Group,
        help="AgentTx: transactions for the tool calls of LLM agents.",
        epilog="`agenttx COMMAND --help` explains a command.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_global_options)
    for module in (serve, health, tools):
        module.add_to(app)
    for name, hidden in (("tx", False), ("transaction", True), ("transactions", True)):
        app.add_typer(_transaction_group(), name=name, hidden=hidden)
    app.add_typer(_step_group(), name="steps")
    app.add_typer(_graph_group(), name="graph")
    app.add_typer(_pipeline_group(), name="pipeline")
    app.add_typer(_lineage_group(), name="lineage")
    app.add_typer(_compensation_group(), name="compensations")
    app.add_typer(_effect_group(), name="effects")
    app.add_typer(_mcp_group(), name="mcp")
    app.add_typer(_token_group(), name="token")
    app.add_typer(_audit_group(), name="audit")
    app.add_typer(_tenant_group(), name="tenant")
    app.add_typer(_encryption_group(), name="encryption")
    for module in (migrate, backup, doctor, hint, version):
        module.add_to(app)
    _use_own_commands(app)
    return app


def _transaction_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Look at transactions, follow them, take them back.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    for module in (transactions, graph, watch, approvals, rollback):
        module.add_to(group)
    compensations.add_acknowledge_to(group)
    _use_own_commands(group)
    return group


def _step_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Steps that run too long or are in doubt: stop one, say what became of one.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    steps.add_to(group)
    _use_own_commands(group)
    return group


def _graph_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Graphs: check them, keep them, draw them, compare their versions.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    graphs.add_to(group)
    graph_runs.add_to(group)
    graph_watch.add_to(group)
    _use_own_commands(group)
    return group


def _pipeline_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Pipelines: check them, keep them, run them over rows, follow their runs.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    pipelines.add_to(group)
    _use_own_commands(group)
    return group


def _lineage_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Records: where they came from, what came of them, whether all holds, and their export.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    lineage.add_to(group)
    _use_own_commands(group)
    return group


def _compensation_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Undo actions that failed: list them, run them again, say what became of them.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    compensations.add_to(group)
    _use_own_commands(group)
    return group


def _effect_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="The outbox: list what is not delivered, requeue it, give it up.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    effects.add_to(group)
    _use_own_commands(group)
    return group


def _mcp_group() -> typer.Typer:
    group = typer.Typer(cls=Group, rich_markup_mode="rich")
    mcp.add_to(group)
    _use_own_commands(group)
    return group


def _token_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Bearer tokens: make, list and revoke them, on the database itself.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    token.add_to(group)
    _use_own_commands(group)
    return group


def _encryption_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Encryption of payloads in the database: make keys, count what is sealed with each, seal anew.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    encryption.add_to(group)
    _use_own_commands(group)
    return group


def _audit_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="The audit trail: who did what to what and when. List, verify and export it.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    audit.add_to(group)
    _use_own_commands(group)
    return group


def _tenant_group() -> typer.Typer:
    group = typer.Typer(
        cls=Group,
        help="Tenants: how much each has stored, measured on the database itself.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    # One command must not take the place of its group.
    group.callback()(lambda: None)
    tenant.add_to(group)
    _use_own_commands(group)
    return group


def _use_own_commands(group: typer.Typer) -> None:
    for registered in group.registered_commands:
        if not issubclass(registered.cls or TyperCommand, Command):
            registered.cls = Command


def _global_options(
    version_wanted: Annotated[
        bool,
        typer.Option(
            "--version", callback=version.print_version, is_eager=True, help="Say which release this is."
        ),
    ] = False,
) -> None:
    pass


def _explained(error: Exception) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    if isinstance(error, CommandRefused):
        return _complain(str(error), error.exit_code)

    # Only now: gRPC comes with them.
    from agenttx.errors import AgentTxError
    from agenttx_server.cli.error_advice import explain

    if isinstance(error, AgentTxError):
        told = explain(error)
        return _complain(str(told), told.exit_code)
    return _complain(
        f"internal error, {type(error).__name__}: {error}; {TRACEBACK_VARIABLE}=1 shows where",
        ExitCode.INTERNAL,
    )


def _usage(refused: typer.TyperException) -> str:
    context = getattr(refused, "ctx", None)
    command = context.command_path if context is not None else PROGRAM
    return f"{refused.format_message().rstrip('.')}; `{command} --help` explains"


def _complain(problem: str, exit_code: ExitCode) -> int:
    sys.stderr.write(f"{PROGRAM}: {printable(problem)}\n")
    return exit_code


def _write_anything() -> None:
    """Have what the terminal's encoding lacks written as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
