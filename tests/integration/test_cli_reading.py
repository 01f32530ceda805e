"""What the command line shows of a real server."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.support.cli_calls import AGENTTX, CommandLine, jump_back, run_to_end
from tests.support.running_server import ServerProcess, server_process

from agenttx import Client

FAR_AWAY = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with server_process(tmp_path_factory.mktemp("data"), tools="tests.support.sample_tools") as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess):
    with Client(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def transaction_id(client: Client) -> str:
    """A committed transaction that went back once."""
    transaction = jump_back(client)
    draft = transaction.step("kv.put", key="draft", value={"customer_id": "${steps.2.value.customer_id}"})
    transaction.step(
        "record.insert",
        table="orders",
        record={"id": transaction.transaction_id, "customer_id": draft.ref("value.customer_id")},
        references={"customer_id": "customers"},
    )
    transaction.commit()
    return transaction.transaction_id


@pytest.fixture
def agenttx(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(server.address, capsys)


@pytest.mark.parametrize(
    "flags", [(), ("--liveness",), ("--readiness",), ("--service", "agenttx.v1.AgentTxService")]
)
def test_a_server_that_serves_is_healthy(agenttx, flags):
    outcome = agenttx("health", *flags)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.rstrip().endswith("SERVING")


def test_a_service_that_is_not_there_is_not_healthy(agenttx):
    outcome = agenttx("health", "--service", "nope", "--json")
    assert outcome.code == 1
    assert outcome.json == {
        "address": agenttx.address,
        "service": "nope",
        "status": "SERVICE_UNKNOWN",
        "healthy": False,
    }


def test_no_server_is_not_healthy_and_says_what_to_do():
    outcome = run_to_end("health", "--address", "127.0.0.1:1", "--timeout", "0.5")
    assert outcome.code == 1
    assert outcome.err.startswith("agenttx: no server answers at 127.0.0.1:1 (")
    assert outcome.err.count("\n") == 1


def test_the_address_can_come_from_the_environment(server):
    outcome = run_to_end("health", "--json", AGENTTX_ADDRESS=server.address)
    assert outcome.json["address"] == server.address
    assert outcome.code == 0


def test_no_server_is_one_line_and_exit_code_69_for_every_command():
    outcome = run_to_end("tx", "list", "--address", "127.0.0.1:1", "--timeout", "0.5")
    assert (outcome.code, outcome.out) == (69, "")
    assert "start one with `agenttx serve`" in outcome.err
    assert outcome.err.count("\n") == 1


def test_tools_are_listed_with_their_promises(agenttx):
    outcome = agenttx("tools")
    assert outcome.code == 0
    assert any(line.split()[:2] == ["kv.put", "TRANSACTIONAL"] for line in outcome.out.splitlines())


def test_tools_as_json_have_their_schemas(agenttx):
    (tool,) = agenttx("tools", "kv.put", "--json").json["tools"]
    assert tool["name"] == "kv.put"
    assert tool["effect_class"] == "TRANSACTIONAL"
    assert tool["arguments_schema"]["required"] == ["key", "value"]


def test_one_tool_is_shown_in_full(agenttx):
    outcome = agenttx("tools", "kv.put")
    assert '"required"' in outcome.out
    assert agenttx("tools", "nope").code == 1


def test_transactions_are_listed_newest_first(agenttx, client, transaction_id):
    newer = client.transaction(agent_id="other").begin().transaction_id
    listed = [entry["transaction_id"] for entry in agenttx("tx", "list", "--json").json["transactions"]]
    assert listed.index(newer) < listed.index(transaction_id)
    assert transaction_id in agenttx("tx", "ls").out


def test_lists_can_be_filtered(agenttx, client, transaction_id):
    client.transaction(agent_id="third", metadata={"kind": "x"}).begin()

    def agents(*filters: str) -> set[str]:
        listed = agenttx("tx", "list", "--json", "--limit", "0", *filters).json["transactions"]
        return {entry["agent_id"] for entry in listed}

    assert agents("--agent", "third") == {"third"}
    assert agents("--label", "kind=x") == {"third"}
    assert agents("--status", "committed") == {"order-desk"}
    assert "third" in agents("--open")
    assert "order-desk" not in agents("--open")
    assert "third" in agents("--since", "1h")
    assert agents("--since", "2099-01-01") == set()


def test_a_list_says_that_there_are_more(agenttx, client):
    for _ in range(3):
        client.transaction(agent_id="many").begin()
    outcome = agenttx("tx", "list", "--agent", "many", "-n", "2", "--json")
    assert len(outcome.json["transactions"]) == 2
    assert outcome.json["more"] is True
    assert agenttx("tx", "list", "--agent", "many", "-n", "3", "--json").json["more"] is False
    assert "--limit 0 lists all" in agenttx("tx", "list", "--agent", "many", "-n", "2").err


def test_an_empty_list_says_so(agenttx):
    assert agenttx("tx", "list", "--agent", "nobody").out == "No such transactions.\n"


def test_a_status_that_there_is_not_is_refused(agenttx):
    outcome = agenttx("tx", "list", "--status", "happy")
    assert outcome.code == 2
    assert "--status 'happy' is none of ACTIVE, " in outcome.err


def test_a_transaction_is_shown(agenttx, transaction_id):
    outcome = agenttx("tx", "show", transaction_id)
    assert outcome.code == 0
    assert f"{transaction_id}  COMMITTED" in outcome.out
    assert "order-desk" in outcome.out
    assert "customer_id c-9 is not present" in outcome.out
    shown = agenttx("tx", "get", transaction_id, "--json").json
    assert shown["status"] == "COMMITTED"
    assert shown["steps_completed"] == 4
    assert shown["generation"] == 2
    assert len(shown["constraints"]) == 1


def test_the_latest_transaction_needs_no_id(agenttx, client):
    newest = client.transaction(agent_id="latest").begin().transaction_id
    assert agenttx("tx", "show", "latest", "--json").json["transaction_id"] == newest


@pytest.mark.parametrize(
    "command",
    [["show"], ["steps"], ["graph"], ["watch"], ["rewind", "1"], ["abort"], ["graph", "--cause", "1", "x"]],
)
def test_a_transaction_that_there_is_not_is_one_clear_line(agenttx, command):
    name, *rest = command
    outcome = agenttx("tx", name, FAR_AWAY, *rest)
    assert (outcome.code, outcome.out) == (1, "")
    assert FAR_AWAY in outcome.err
    assert outcome.err.count("\n") == 1


def test_steps_tell_the_story_in_order(agenttx, transaction_id):
    lines = agenttx("tx", "steps", transaction_id).out.splitlines()
    words = [line.split() for line in lines]
    states = [(row[0], row[4]) for row in words if len(row) > 4 and row[0].isdecimal()]
    assert states == [
        ("1", "COMPLETED"),
        ("2", "REWOUND"),
        ("3", "REWOUND"),
        ("4", "REWOUND"),
        ("5", "FAILED"),
        ("2", "COMPLETED"),
        ("3", "COMPLETED"),
        ("4", "COMPLETED"),
    ]
    assert any("↩ DEPENDENCY_JUMP to step 2: 4 steps to run again" in line for line in lines)
    assert any("root cause: 5.customer_id ← 3.customer_id ← 2.customer_id" in line for line in lines)


def test_steps_can_be_those_in_force_or_of_one_position(agenttx, transaction_id):
    live = agenttx("tx", "steps", transaction_id, "--live", "--json").json["attempts"]
    assert [(attempt["step_id"], attempt["state"]) for attempt in live] == [
        (number, "COMPLETED") for number in (1, 2, 3, 4)
    ]
    second = agenttx("tx", "steps", transaction_id, "--step", "2", "--json").json["attempts"]
    assert [(attempt["attempt"], attempt["rewound"]) for attempt in second] == [(1, True), (2, False)]


def test_a_failed_attempt_as_json_has_its_hint_and_decision(agenttx, transaction_id):
    (failed,) = agenttx("tx", "steps", transaction_id, "--step", "5", "--json").json["attempts"]
    assert failed["category"] == "foreign_key_violation"
    assert failed["hint"].startswith("Hint: ")
    assert failed["decision"]["strategy"] == "DEPENDENCY_JUMP"
    assert failed["decision"]["target_step"] == 2


def test_details_show_what_the_agent_said_and_what_the_tool_answered(agenttx, transaction_id):
    out = agenttx("tx", "steps", transaction_id, "--details").out
    assert "a guess" in out
    assert '"customer_id": "c-9"' in out
    assert "violates foreign key constraint" in out


def test_the_graph_is_drawn_with_its_edges(agenttx, transaction_id):
    lines = agenttx("tx", "graph", transaction_id).out.splitlines()
    assert "  └─ 1.id → customer_id" in lines
    assert "  └─ 2.customer_id → customer_id" in lines


def test_the_root_cause_is_marked(agenttx, transaction_id):
    outcome = agenttx("tx", "graph", transaction_id, "--cause", "4", "customer_id")
    assert "1 record.insert  ◀ root cause" in outcome.out
    assert outcome.out.rstrip().endswith("root cause: 4.customer_id ← 3.customer_id ← 2.customer_id ← 1.id")


def test_a_key_without_a_cause_is_said_and_the_graph_still_drawn(agenttx, transaction_id):
    outcome = agenttx("tx", "graph", transaction_id, "--cause", "4", "zip")
    assert outcome.code == 0
    assert "no root cause" in outcome.err
    assert "1 record.insert\n" in outcome.out


def test_the_graph_has_other_forms(agenttx, transaction_id):
    assert agenttx("tx", "graph", transaction_id, "-f", "mermaid").out.startswith("flowchart TD\n")
    assert agenttx("tx", "graph", transaction_id, "-f", "dot").out.startswith("digraph")
    drawn = agenttx("tx", "graph", transaction_id, "-f", "json", "--cause", "4", "customer_id").json
    assert [node["step_id"] for node in drawn["nodes"]] == [1, 2, 3, 4]
    assert drawn["root_cause"]["step_id"] == 1
    assert agenttx("tx", "graph", transaction_id, "--json").json["edges"] == drawn["edges"]


def test_the_graph_can_be_cut(agenttx, transaction_id):
    drawn = agenttx("tx", "graph", transaction_id, "--json", "--from", "2", "--to", "3").json
    assert [node["step_id"] for node in drawn["nodes"]] == [2, 3]


def test_watching_an_ended_transaction_prints_its_journal_and_ends(agenttx, transaction_id):
    events = agenttx("tx", "watch", transaction_id, "--json").json_lines
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "TRANSACTION_BEGUN"
    assert events[-1]["type"] == "TRANSACTION_COMMITTED"
    later = agenttx("tx", "watch", transaction_id, "--json", "--from", "3").json_lines
    assert later == events[2:]


def test_events_for_people_are_a_line_each(agenttx, transaction_id):
    lines = agenttx("tx", "watch", transaction_id).out.splitlines()
    assert len(lines) == len(agenttx("tx", "watch", transaction_id, "--json").json_lines)
    assert any("STEP_FAILED" in line and "step 5" in line and "Hint: customer_id" in line for line in lines)


def test_a_reader_that_goes_away_is_no_error(server, transaction_id):
    """As in `agenttx tx steps … | head`."""
    process = subprocess.Popen(
        [AGENTTX, "tx", "steps", transaction_id, "--json", "--address", server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == 0


def test_nothing_is_lost_where_the_terminal_has_ascii_only(transaction_id, server):
    outcome = run_to_end(
        "tx", "steps", transaction_id, "--address", server.address, PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert "\\u21a9 DEPENDENCY_JUMP" in outcome.out
    as_json = run_to_end(
        "tx",
        "show",
        transaction_id,
        "--json",
        "--address",
        server.address,
        PYTHONIOENCODING="ascii",
        PYTHONUTF8="0",
    )
    assert json.loads(as_json.out)["transaction_id"] == transaction_id
