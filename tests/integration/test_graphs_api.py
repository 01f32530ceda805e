"""GraphService on a real server: through the SDK, grpcurl and the command line."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from tests.support.cli_calls import CommandLine
from tests.support.running_server import ServerProcess, server_process

import agenttx
from agenttx import END, START, AsyncClient, Client, GraphBuilder, errors
from agenttx.v1 import graph_pb2 as pb

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "graphs" / "defining.md").read_text()
GRPCURL = shutil.which("grpcurl") or shutil.which("grpcurl", path=str(Path(sys.executable).parent))
SERVICE = "agenttx.v1.GraphService"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with server_process(tmp_path_factory.mktemp("data"), reducers="tests.support.sample_reducers") as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess):
    with Client(server.address) as client:
        yield client


@pytest.fixture
def agenttx_command(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(server.address, capsys)


def chain(name: str, *nodes: str) -> GraphBuilder:
    builder = GraphBuilder(name).channel("log", reducer="append")
    for before, node in zip((START, *nodes), nodes, strict=False):
        builder.node(node).edge(before, node)
    return builder


def test_the_page_says_what_happens(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (drawn,) = re.findall(r"^```mermaid\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

    monkeypatch.setenv("AGENTTX_ADDRESS", server.address)
    exec(code, {})

    told = capsys.readouterr().out
    assert told.startswith("True []\n")
    assert drawn in told


def test_registered_twice_is_one_version(client: Client) -> None:
    first = client.graphs.register(chain("twice", "a", "b"))
    again = client.graphs.register(chain("twice", "a", "b"))
    other = client.graphs.register(chain("twice", "a", "b", "c"))

    assert (first.existed, again.existed) == (False, True)
    assert first.graph == again.graph
    assert client.graphs.get("twice").graph == other.graph
    assert client.graphs.get("twice", first.graph.version[:12]).graph == first.graph
    assert [graph.version for graph in client.graphs.list("twice", page_size=1)] == [
        other.graph.version,
        first.graph.version,
    ]


def test_a_request_id_gets_its_own_answer_again(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        register = channel.unary_unary(
            f"/{SERVICE}/RegisterGraph",
            request_serializer=pb.RegisterGraphRequest.SerializeToString,
            response_deserializer=pb.RegisterGraphResponse.FromString,
        )
        definition = chain("once", "a").definition()
        first = register(pb.RegisterGraphRequest(request_id="r-1", definition=definition))
        assert register(pb.RegisterGraphRequest(request_id="r-2", definition=definition)).existed
        assert register(pb.RegisterGraphRequest(request_id="r-1", definition=definition)) == first
        assert not first.existed
        with pytest.raises(grpc.RpcError, match="request_id") as refused:
            register(pb.RegisterGraphRequest(request_id="r-1", definition=chain("once", "b").definition()))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_everything_that_is_wrong_is_told(client: Client) -> None:
    broken = chain("broken", "a").edge("a", "nowhere").node("a").channel("x", reducer="nope")

    found = client.graphs.validate(broken)
    with pytest.raises(errors.InvalidArgument) as refused:
        client.graphs.register(broken)

    assert not found.valid
    assert {finding.code for finding in found.findings if finding.is_error} == {
        "DUPLICATE_NODE", "EDGE_TARGET_MISSING", "REDUCER_UNKNOWN",
    }  # fmt: skip
    assert refused.value.reason == "DUPLICATE_NODE"
    assert len(refused.value.violations) == 3
    with pytest.raises(errors.NotFound) as missing:
        client.graphs.get("broken")
    assert missing.value.reason == "GRAPH_NOT_FOUND"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda c: c.graphs.validate("not json"), "not a graph"),
        (lambda c: c.graphs.validate('{"name": "g", "nodes": [{}]}'), r"definition_json.nodes\[0\].name"),
        (lambda c: c.graphs.get("twice", "v123"), "fewer than 8"),
        (lambda c: c.graphs.get("a\0b"), "U\\+0000"),
        (lambda c: c.graphs.export("", "DOT"), "is empty"),
    ],
)
def test_what_makes_no_sense_is_refused(client: Client, ask, message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        ask(client)


def test_exported_json_is_the_same_graph(client: Client) -> None:
    kept = client.graphs.register(chain("written", "a", "b"))

    text = client.graphs.export("written")

    assert client.graphs.register(text).graph == kept.graph
    assert json.loads(text)["entry"] == ["a"]
    assert client.graphs.export(chain("written", "a", "b"), "DOT") == client.graphs.export("written", "DOT")


def test_versions_are_compared(client: Client) -> None:
    first = client.graphs.register(chain("grows", "a", "b"))
    second = client.graphs.register(chain("grows", "a", "c"))

    difference = client.graphs.diff("grows")

    assert (difference.from_version, difference.to_version) == (first.graph.version, second.graph.version)
    assert difference.breaking_nodes == ("b",)
    assert [change.what for change in difference.changes if change.breaking] == ["node b"]
    assert client.graphs.diff("grows", definition=chain("grows", "a", "c")).changes == ()


def test_an_embedded_graph_is_pinned(client: Client) -> None:
    inner = client.graphs.register(chain("inner", "x"))
    outer = GraphBuilder("outer").channel("log", reducer="append").node("child", agenttx.Subgraph("inner"))
    client.graphs.register(outer.edge(START, "child").edge("child", END))

    written = json.loads(client.graphs.export("outer"))

    assert written["nodes"][0]["subgraph"]["version"] == inner.graph.version
    with pytest.raises(errors.InvalidArgument) as refused:
        client.graphs.register(
            GraphBuilder("inner")
            .channel("log", reducer="append")
            .node("y", agenttx.Subgraph("outer"))
            .edge(START, "y")
        )
    assert refused.value.reason == "SUBGRAPH_CYCLE"


def test_a_reducer_of_the_deployment_is_pinned(client: Client) -> None:
    builder = GraphBuilder("custom").channel("best", reducer="longest").node("a").edge(START, "a")
    client.graphs.register(builder)

    assert json.loads(client.graphs.export("custom"))["channels"][0]["reducer_version"] == "1"


async def test_the_asynchronous_client_does_the_same(server: ServerProcess) -> None:
    async with AsyncClient(server.address) as client:
        kept = await client.graphs.register(chain("async", "a"))
        assert (await client.graphs.validate(chain("async", "a"))).version == kept.graph.version
        assert (await client.graphs.get("async")).graph == kept.graph
        assert kept.graph in [graph async for graph in client.graphs.list(page_size=1)]
        assert (await client.graphs.export("async", "MERMAID")).startswith("flowchart TD\n")
        assert (await client.graphs.diff("async")).changes == ()


async def test_many_register_the_same_at_once(server: ServerProcess) -> None:
    async with AsyncClient(server.address) as client:
        kept = await asyncio.gather(*(client.graphs.register(chain("crowd", "a")) for _ in range(20)))

    assert sum(not each.existed for each in kept) == 1
    assert len({each.graph for each in kept}) == 1


@pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not installed")
def test_grpcurl_needs_no_proto_files(server: ServerProcess) -> None:
    body = {
        "definition": {
            "name": "curl",
            "nodes": [{"name": "a", "none": {}}],
            "edges": [{"source": "__start__", "target": "a"}],
        }
    }
    done = subprocess.run(
        [str(GRPCURL), "-plaintext", "-d", json.dumps(body), server.address, f"{SERVICE}/RegisterGraph"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["graph"]["name"] == "curl"


def test_graphs_outlive_the_server(tmp_path: Path) -> None:
    with server_process(tmp_path) as first, Client(first.address) as client:
        kept = client.graphs.register(chain("kept", "a"))
    with server_process(tmp_path) as second, Client(second.address) as client:
        assert client.graphs.get("kept").graph == kept.graph
        assert client.graphs.register(chain("kept", "a")).existed


# --- the command line ----------------------------------------------------------------------


def test_the_command_line(agenttx_command: CommandLine, tmp_path: Path) -> None:
    source = "tests.support.sample_reducers:BUILDER"
    validated = agenttx_command("graph", "validate", source)
    registered = agenttx_command("graph", "register", source)
    shown = agenttx_command("graph", "show", "sample", "--json")
    drawn = agenttx_command("graph", "export", "sample", "-f", "mermaid")
    exported = tmp_path / "sample.json"
    exported.write_text(agenttx_command("graph", "export", "sample").out)
    again = agenttx_command("graph", "register", str(exported))
    listed = agenttx_command("graph", "list")
    compared = agenttx_command("graph", "diff", "sample")

    version = json.loads(shown.out)["graph"]["version"]
    assert f"sound; version {version}" in validated.out
    assert "UNBOUND" not in validated.out
    assert f"sample {version} registered" in registered.out
    assert drawn.out.startswith("flowchart TD\n")
    assert f"sample {version} was registered before" in again.out
    assert "sample" in listed.out
    assert compared.out == "There is one version only.\n"


def test_a_graph_that_is_not_sound_on_the_command_line(agenttx_command: CommandLine, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"name": "broken", "nodes": [{"name": "a"}], "entry": ["b"]}')

    validated = agenttx_command("graph", "validate", str(broken))
    registered = agenttx_command("graph", "register", str(broken))
    missing = agenttx_command("graph", "validate", str(tmp_path / "missing.json"))

    assert validated.code == 1
    assert "EDGE_TARGET_MISSING" in validated.out
    assert registered.code == 2
    assert "EDGE_TARGET_MISSING" in registered.err
    assert missing.code == 2
    assert "can't read" in missing.err


def test_runs_on_the_command_line(agenttx_command: CommandLine, tmp_path: Path) -> None:
    graph = tmp_path / "asking.json"
    builder = agenttx.GraphBuilder("kept").channel("value").channel("key")
    builder.node(
        "put",
        agenttx.ToolCall(
            "kv.put", {"key": "cli", "value": "${state.value}"}, output={"key": "${result.key}"}
        ),
    )
    builder.edge(agenttx.START, "put").interrupt(before=["put"])
    with agenttx.Client(agenttx_command.address) as client:
        graph.write_text(client.graphs.export(builder))
    agenttx_command("graph", "register", str(graph))
    stopped = agenttx_command("graph", "run", "kept", "-t", "cli-1", "--input", '{"value": [1]}')
    shown = agenttx_command("graph", "state", "cli-1")
    listed = agenttx_command("graph", "runs", "kept")
    threads = agenttx_command("graph", "threads", "--json")
    unanswered = agenttx_command("graph", "resume", "cli-1", "1")
    done = agenttx_command("graph", "retry", "cli-1", "--json")
    history = agenttx_command("graph", "history", "cli-1", "--json")
    run_id = json.loads(done.out)["run_id"]
    watched = agenttx_command("graph", "watch", run_id)
    updates = agenttx_command("graph", "watch", run_id, "--mode", "updates", "--from", "3", "--json")
    no_mode = agenttx_command("graph", "watch", run_id, "--mode", "all")
    nobody = agenttx_command("graph", "watch", "nobody")
    failed = agenttx_command("graph", "run", "kept", "--input", "[1]")
    missing = agenttx_command("graph", "state", "nobody")

    assert "INTERRUPTED" in stopped.out
    assert "next" in shown.out
    assert "put" in shown.out
    assert "cli-1" in listed.out
    assert [thread["thread_id"] for thread in json.loads(threads.out)["threads"]] == ["cli-1"]
    assert (unanswered.code, "no interrupt is pending" in unanswered.err) == (1, True)
    assert json.loads(done.out)["state"] == {"key": "cli", "value": [1]}
    assert len(json.loads(history.out)["checkpoints"]) == 2
    lines = watched.out.splitlines()
    assert [line.split()[1] for line in lines] == [str(number) for number in range(len(lines))]
    assert "run.started" in lines[0]
    assert "run.interrupted" in watched.out
    assert "node.completed        1 put" in watched.out
    assert lines[-1].split()[2] == "run.completed"
    told = [json.loads(line) for line in updates.out.splitlines()]
    assert [event["kind"] for event in told] == ["run.started", "state.updated", "run.completed"]
    assert told[1]["payload"] == {"update": {"key": "cli"}}
    assert (no_mode.code, "none of VALUES" in no_mode.err) == (2, True)
    assert (nobody.code, "no run" in nobody.err) == (1, True)
    assert failed.code == 2
    assert "no JSON object of channels" in failed.err
    assert missing.code == 1
