"""Saying, while a command waits for the end of a run, that the run itself waits for a worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from agenttx_server.cli.output import printable

if TYPE_CHECKING:
    import agenttx

__all__ = ["telling_of_run"]

_LOOK_SECONDS = 1.0


@contextmanager
def telling_of_run(client: agenttx.Client, run_id: str) -> Iterator[None]:
    """Say on stderr which run is waited for, and from then on which workers it waits for."""
    typer.echo(f"run {printable(run_id)}", err=True)
    ended = threading.Event()
    # A daemon, which is not waited for: it may be in a call that a server that went away never answers.
    threading.Thread(target=_look, args=(client, run_id, ended), name="run-waiting", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _look(client: agenttx.Client, run_id: str, ended: threading.Event) -> None:
    from agenttx.errors import AgentTxError

    told = ""
    while not ended.wait(_LOOK_SECONDS):
        try:
            run = client.graphs.run(run_id)
            awaited = _functions(client, run) if run.status == "WAITING" else ""
        except AgentTxError:
            continue  # whoever waits for the run's end says what is wrong
        if awaited and awaited != told and not ended.is_set():
            typer.echo(f"waiting for a worker hosting {printable(awaited)}", err=True)
        told = awaited


def _functions(client: agenttx.Client, run: agenttx.GraphRun) -> str:
    """The functions of the nodes that have not finished, some of which nobody hosts."""
    graph = json.loads(client.graphs.export(run.graph, version=run.graph_version))
    # A node that names nothing is run by the function of its own name.
    hosted = {
        node["name"]: node.get("function", f"{run.graph}/{node['name']}")
        for node in graph["nodes"]
        if "tool" not in node and "subgraph" not in node
    }
    names = [hosted[node] for node in run.active_nodes if node in hosted]
    return " or ".join(names) or ", ".join(run.active_nodes)
