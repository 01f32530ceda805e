"""``agenttx graph run`` and what belongs to it: start, answer and go on with runs, look at them and at their threads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import DEFAULT_LIMIT, AsJson, Limit, first_of, say_there_are_more
from agenttx_server.cli.output import print_json, print_line, print_text
from agenttx_server.cli.run_waiting import telling_of_run

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]


GraphName = Annotated[str, typer.Argument(metavar="NAME", help="The graph's name.")]
Thread = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Update = Annotated[
    str, typer.Option("--update", metavar="JSON", help="An update of channels to make first, a JSON object.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Don't wait for the end: print the run's id.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    for command in (run, resume, retry, state, history, runs, threads, cancel, drain):
        group.command(command.__name__)(connected(command))


def run(
    client: agenttx.Client,
    name: GraphName,
    given: Annotated[
        str,
        typer.Option(
            "--input", "-i", metavar="JSON", help="The input, a JSON object of channels; @FILE or - reads it."
        ),
    ] = "",
    thread: Annotated[
        str, typer.Option("--thread", "-t", metavar="THREAD", help="On this thread; without it none is kept.")
    ] = "",
    version: Annotated[str, typer.Option("--version", metavar="VERSION", help="This version.")] = "",
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="ID", help="From this checkpoint, on a branch of its own.")
    ] = "",
    durability: Annotated[
        str,
        typer.Option(
            "--durability", metavar="WHEN", help="When boundaries are durable: SYNC, ASYNC or EXIT."
        ),
    ] = "",
    commit: Annotated[
        str, typer.Option("--commit", metavar="WHEN", help="When it commits: COMPLETION or INTERRUPT.")
    ] = "",
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Run a graph: to its end, or to where it waits for somebody. Exit code 1 if it failed."""
    graph = client.graphs.get(name, version)
    channels = _channels("--input", given)
    limits = _limits(durability, commit)
    if no_wait:
        started = graph.start(channels, thread=thread, checkpoint=checkpoint, limits=limits)
        _tell(started, as_json=as_json)
        return
    # A stream names the run at once, and doesn't end before the run does.
    with graph.stream(
        channels, thread=thread, checkpoint=checkpoint, modes=["INTERRUPTS"], limits=limits
    ) as events:
        next(events, None)
        with telling_of_run(client, events.run_id):
            for _ in events:
                pass
    if events.outcome is None:
        raise CommandRefused("the server told of no end of the run")
    _tell(events.outcome, as_json=as_json)


def resume(
    client: agenttx.Client,
    thread: Thread,
    value: Annotated[
        str,
        typer.Argument(metavar="ANSWER", help="The answer, any JSON value; for the only question pending."),
    ] = "",
    answers: Annotated[
        list[str] | None,
        typer.Option("--answer", metavar="ID=JSON", help="The answer to this question; may be repeated."),
    ] = None,
    update: Update = "",
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Answer what a run waits for, and go on with it. Exit code 1 if it failed."""
    given: dict[str, Any] = {"values": dict(map(_answer, answers))} if answers else {}
    if value:
        given["value"] = _json("ANSWER", value)
    elif not answers:
        raise CommandRefused("give an ANSWER, or --answer ID=JSON for each question", ExitCode.USAGE)
    channels = _channels("--update", update)
    _go_on(
        client,
        thread,
        lambda graph: graph.resume(thread, update=channels, **given, **_waits(no_wait)),
        no_wait,
        as_json,
    )


def retry(
    client: agenttx.Client,
    thread: Thread,
    update: Update = "",
    discard: Annotated[
        list[str] | None,
        typer.Option("--discard", metavar="TASK", help="Give up this task's result; may be repeated."),
    ] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that failed, was cancelled or drained, or stopped at a node. Exit code 1 if it failed."""
    channels = _channels("--update", update)
    _go_on(
        client,
        thread,
        lambda graph: graph.retry(thread, update=channels, discard=discard or (), **_waits(no_wait)),
        no_wait,
        as_json,
    )


def state(
    client: agenttx.Client,
    thread: Thread,
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="At this checkpoint; without it at the head.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show the state of a thread, and what comes next."""
    found = _graph_of(client, thread).state(thread, checkpoint)
    if as_json:
        print_json(found)
        return
    from agenttx_server.cli.rendering.runs import state_facts

    print_text(state_facts(found))


def history(
    client: agenttx.Client,
    thread: Thread,
    all_branches: Annotated[bool, typer.Option("--all", help="On all branches.")] = False,
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a thread, the newest first."""
    found = _graph_of(client, thread).history(thread, all_branches=all_branches, include_state=as_json)
    checkpoints, more = first_of(found, limit)
    if as_json:
        print_json({"checkpoints": checkpoints})
        return
    from agenttx_server.cli.rendering.runs import checkpoint_table

    print_text(checkpoint_table(checkpoints))
    if more:
        say_there_are_more(limit, "newest")


def runs(
    client: agenttx.Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of this graph.")] = "",
    thread: Annotated[str, typer.Option("--thread", "-t", metavar="THREAD", help="On this thread.")] = "",
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    found = client.graphs.runs(graph=name, thread=thread)
    listed, more = first_of(found, limit)
    if as_json:
        print_json({"runs": listed})
    elif not listed:
        print_line("No runs.")
    else:
        from agenttx_server.cli.rendering.runs import run_table

        print_text(run_table(listed))
        if more:
            say_there_are_more(limit, "newest")


def threads(
    client: agenttx.Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of this graph.")] = "",
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List threads, those last used first."""
    found = client.graphs.threads(graph=name)
    listed, more = first_of(found, limit)
    if as_json:
        print_json({"threads": listed})
    elif not listed:
        print_line("No threads.")
    else:
        from agenttx_server.cli.rendering.runs import thread_table

        print_text(thread_table(listed))
        if more:
            say_there_are_more(limit)


def cancel(
    client: agenttx.Client,
    run_id: Run,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = "",
    rollback: Annotated[bool, typer.Option("--rollback", help="Undo all that it did too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cancel a run: finished nodes keep their results, and `graph retry` goes on."""
    cancelled = client.graphs.cancel(run_id, reason, rollback=rollback)
    if as_json:
        print_json(cancelled)
    else:
        print_line(f"{run_id} {'rolled back' if rollback else 'is being cancelled'}")


def drain(
    client: agenttx.Client,
    run_id: Run,
    grace: Annotated[
        float | None, typer.Option("--grace", min=0, metavar="SECONDS", help="Cancel it after so long.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have a run stop at the end of its superstep; `graph retry` goes on."""
    drained = client.graphs.drain(run_id, grace)
    if as_json:
        print_json(drained)
    else:
        print_line(f"{run_id} stops at its next boundary")


def _go_on(
    client: agenttx.Client,
    thread: str,
    ask: Callable[[agenttx.Graph], agenttx.RunOutcome],
    no_wait: bool,
    as_json: bool,
) -> None:
    known = client.graphs.thread(thread).thread
    graph = client.graphs.get(known.graph, known.graph_version)
    with nullcontext() if no_wait else telling_of_run(client, known.run_id):
        outcome = ask(graph)
    _tell(outcome, as_json=as_json)


def _graph_of(client: agenttx.Client, thread: str) -> agenttx.Graph:
    known = client.graphs.thread(thread).thread
    return client.graphs.get(known.graph, known.graph_version)


def _limits(durability: str, commit: str) -> agenttx.RunLimits:
    import agenttx

    return agenttx.RunLimits(durability=durability.upper() or None, commit=commit.upper() or None)


def _waits(no_wait: bool) -> dict[str, Any]:
    return {"wait_seconds": 0.0} if no_wait else {}


def _tell(outcome: agenttx.RunOutcome, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome)
    else:
        from agenttx_server.cli.rendering.runs import outcome_facts

        print_text(outcome_facts(outcome))
    if outcome.status == "FAILED":
        why = outcome.error.message if outcome.error is not None else "for no reason that is known"
        raise CommandRefused(f"the run failed: {why}", ExitCode.REFUSED)


def _channels(option: str, text: str) -> dict[str, Any] | None:
    if not text:
        return None
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandRefused(f"can't read {text[1:]}: {error}", ExitCode.USAGE) from error
    value = _json(option, text)
    if not isinstance(value, dict):
        raise CommandRefused(f"{option} is no JSON object of channels", ExitCode.USAGE)
    return value


def _answer(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandRefused(f"--answer {text!r} is not ID=JSON", ExitCode.USAGE)
    return name, _json(f"--answer {name}", value)


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandRefused(f"{option} is no JSON: {error}", ExitCode.USAGE) from error
