"""Loops over function calls: calls become steps, parallel ones groups, a rollback messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.client_kinds import Connect, connect
from tests.support.running_server import ServerProcess, server_process

import agenttx
from agenttx.integrations.function_calling import (
    AsyncFunctionCalls,
    FunctionCalls,
    function_definitions,
    function_names,
)
from agenttx.integrations.in_process_worker import InProcessWorker
from agenttx.worker import tool

__all__ = ["connect"]

SENT: list[str] = []


@tool("sms.send", effects="irreversible")
def send(ctx: Any, text: str) -> dict[str, str]:
    """Send a text message."""
    SENT.append(text)
    return {"sms": text}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server")) as process:
        yield process


class Loop:
    """Plays a model's part, in the form of Chat Completions, whichever client the transaction is of."""

    def __init__(self, transaction: Any, **settings: Any) -> None:
        self.history: list[Any] = [{"role": "user", "content": "Do it."}]
        names = {"kv_put": "kv.put", "kv_get": "kv.get", "insert": "record.insert", "sms": "sms.send"}
        wrapped = getattr(transaction, "_wrapped", None)
        if wrapped is None:
            self.run = FunctionCalls(transaction, names=names, **settings).run
        else:
            calls = AsyncFunctionCalls(wrapped, names=names, **settings)
            self.run = lambda history: transaction._loop.run(calls.run(history))

    def say(self, *calls: tuple[str, str, dict[str, Any]]) -> Any:
        """Append an assistant's message with calls (id, name, arguments), run it and apply what came of it."""
        self.history.append(assistant(*calls))
        turn = self.run(self.history)
        turn.apply(self.history)
        return turn


def assistant(*calls: tuple[str, str, Any]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for call_id, name, arguments in calls
        ],
    }


def put(call_id: str, key: str, value: Any) -> tuple[str, str, dict[str, Any]]:
    return call_id, "kv_put", {"key": key, "value": value}


def order(call_id: str, customer: str, prefix: str) -> tuple[str, str, dict[str, Any]]:
    record = {"id": f"{prefix}-{call_id}", "customer_id": customer}
    arguments = {
        "table": f"{prefix}_orders",
        "record": record,
        "references": {"customer_id": f"{prefix}_customers"},
    }
    return call_id, "insert", arguments


def customer(call_id: str, name: str, prefix: str) -> tuple[str, str, dict[str, Any]]:
    return call_id, "insert", {"table": f"{prefix}_customers", "record": {"id": name}}


def test_the_calls_of_one_message_are_one_group_and_are_answered_by_id(server, connect: Connect):
    with connect(server.address).transaction(agent_id="a") as transaction:
        turn = Loop(transaction).say(put("c1", "g1", 1), put("c2", "g2", {"x": 2}))

        assert [message["tool_call_id"] for message in turn.messages] == ["c1", "c2"]
        assert json.loads(turn.messages[1]["content"])["value"] == {"x": 2}
        assert turn.cut == 0
        attempts = list(connect(server.address).list_steps(transaction.transaction_id))
        assert [attempt.group_first_step for attempt in attempts] == [1, 1]


def test_a_rollback_cuts_what_was_undone_and_says_what_to_keep_to(server, connect: Connect):
    with connect(server.address).transaction(agent_id="a") as transaction:
        loop = Loop(transaction)
        ann = f"ann-{uuid.uuid4()}"
        loop.say(customer("c1", ann, "r"))
        before = len(loop.history)
        loop.say(put("c2", "chosen", {"customer_id": "bob"}))
        loop.say(put("c3", "note", "for bob"))
        loop.history.append({"role": "user", "content": "Make it quick."})
        turn = loop.say(order("c4", "bob", "r"))

        assert turn.is_rolled_back
        assert transaction.next_step_id == 2
        assert loop.history[before:-1] == [{"role": "user", "content": "Make it quick."}]
        note = loop.history[-1]
        assert note["role"] == "user"
        assert "Step 4 (record.insert) failed." in note["content"]
        assert "step 2 (kv.put), step 3 (kv.put)" in note["content"]
        assert "Keep to this" in note["content"]
        assert "customer_id bob is not present" in note["content"]

        loop.say(put("c5", "chosen", {"customer_id": ann}))
        assert loop.say(order(f"c6-{ann}", ann, "r")).cut == 0


def test_a_second_rollback_to_the_same_place_leaves_one_note(server, connect: Connect):
    with connect(server.address).transaction(agent_id="a") as transaction:
        loop = Loop(transaction)
        loop.say(put("c1", "k", 1))
        for attempt in ("c2", "c3"):
            loop.say(order(attempt, f"nobody-{attempt}", "s"))
        notes = [m for m in loop.history[1:] if m.get("role") == "user"]
        assert len(notes) == 1
        assert "nobody-c2" in notes[0]["content"]
        assert "nobody-c3" in notes[0]["content"]
        transaction.rollback()


def test_the_same_history_again_is_answered_the_same_and_takes_effect_once(server, connect: Connect):
    with connect(server.address).transaction(agent_id="a") as transaction:
        loop = Loop(transaction)
        history = [*loop.history, assistant(put("c1", "once", 1), put("c2", "twice", 2))]
        first = loop.run(history)
        again = loop.run(history)
        assert again.messages == first.messages
        assert transaction.next_step_id == 3

        history += [*again.messages, assistant(order("c3", "nobody", "t"))]
        failed = loop.run(history)
        assert loop.run(history) == failed
        assert failed.is_rolled_back
        transaction.rollback()


def test_a_new_process_goes_on_with_a_history_that_was_kept(server, connect: Connect):
    client = connect(server.address)
    transaction = client.transaction(agent_id="a").begin()
    loop = Loop(transaction)
    loop.say(put("c1", "kept", 1))
    history = [*loop.history, assistant(put("c2", "kept2", 2), put("c3", "kept3", 3))]
    answered = loop.run(history)  # and the process ends before it could note the answer

    resumed = client.resume(transaction.transaction_id)
    loop = Loop(resumed)
    assert loop.run(history).messages == answered.messages
    assert resumed.next_step_id == 4
    history += [*answered.messages, assistant(order("c4", "nobody", "p"))]
    failed = loop.run(history)

    resumed = client.resume(transaction.transaction_id)
    assert Loop(resumed).run(history).messages == failed.messages
    resumed.rollback()


def test_a_call_that_cannot_be_undone_is_a_step_of_its_own_and_stays(server, connect: Connect):
    SENT.clear()
    with (
        InProcessWorker([send], server.address),
        connect(server.address).transaction(agent_id="a") as transaction,
    ):
        loop = Loop(transaction)
        turn = loop.say(
            put("c1", "one", 1),
            ("c2", "sms", {"text": "hello"}),
            order("c3", "nobody", "i"),
            put("c4", "four", 4),
        )
        assert [o and o.status for o in turn.outcomes][:2] == ["SUCCESS", "SUCCESS"]
        assert turn.is_rolled_back
        assert transaction.next_step_id == 3
        note = loop.history[-1]["content"]
        assert 'Done and not undone, don\'t call it again: kv.put with {"key": "one", "value": 1}' in note
        assert 'sms.send with {"text": "hello"}, which returned {"sms": "hello"}' in note
        assert SENT == ["hello"]
        loop.say(put("c5", "three", 3))


def test_nothing_is_run_for_a_model_that_has_not_heard_of_a_rewind(server, connect: Connect):
    with connect(server.address).transaction(agent_id="a") as transaction:
        loop = Loop(transaction)
        loop.say(put("c1", "x", 1))
        loop.say(put("c2", "y", 1))
        transaction.rewind(2)
        turn = loop.say(put("c3", "z", 1))
        assert turn.outcomes == (None,)
        assert "rewound by somebody else" in loop.history[-1]["content"]
        assert len(loop.history) == 4  # task, c1, its result, the note
        loop.say(put("c4", "y", 2))
        assert transaction.next_step_id == 3


def test_without_cutting_the_results_tell_what_was_undone(server, connect: Connect):
    with connect(server.address).transaction(agent_id="a") as transaction:
        loop = Loop(transaction, cut_undone=False)
        loop.say(put("c1", "chosen", {"customer_id": "zed"}))
        turn = loop.say(put("c2", "beside", 1), order("c3", "zed", "w"))
        assert [message["tool_call_id"] for message in turn.messages] == ["c2", "c3"]
        assert turn.messages[0]["content"].startswith("Undone:")
        assert "step 1 (kv.put)" in turn.messages[1]["content"]
        assert turn.cut == 0
        transaction.rollback()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [('{"key": ', "not valid JSON"), ("[1]", "not a JSON object"), ('{"key": 1e999}', "can't be sent")],
)
def test_calls_that_cannot_be_read_are_told_so_and_nothing_of_their_message_runs(
    server, arguments: str, complaint: str
):
    with agenttx.Client(server.address).transaction(agent_id="a") as transaction:
        turn = Loop(transaction).say(put("c1", "k", 1), ("c2", "kv_put", arguments))
        assert "Not run" in turn.messages[0]["content"]
        assert complaint in turn.messages[1]["content"]
        assert transaction.next_step_id == 1


def test_an_aborted_transaction_is_raised(server, connect: Connect):
    client = connect(server.address)
    policy = agenttx.Policy(max_local_depth=0, max_global_resets=0)
    with (
        pytest.raises(agenttx.TransactionAborted),
        client.transaction(agent_id="a", policy=policy) as transaction,
    ):
        Loop(transaction).say(order("c1", "nobody", "v"))


def test_a_message_without_calls_is_final(server):
    with agenttx.Client(server.address).transaction(agent_id="a") as transaction:
        calls = FunctionCalls(transaction)
        assert calls.run([{"role": "assistant", "content": "Done."}]).is_final
        assert calls.run([assistant(put("c", "k", 1)), {"role": "tool", "content": ""}]).is_final


def test_responses_items_with_their_reasoning(server):
    with agenttx.Client(server.address).transaction(agent_id="a") as transaction:
        calls = FunctionCalls(transaction, names={"kv_put": "kv.put", "insert": "record.insert"})
        history: list[Any] = [{"role": "user", "content": "Do it."}]

        def say(call_id: str, name: str, arguments: Any) -> Any:
            history.append({"type": "reasoning", "id": f"r-{call_id}", "summary": []})
            item = {
                "type": "function_call",
                "call_id": call_id,
                "name": name,
                "arguments": json.dumps(arguments),
            }
            history.append(item)
            turn = calls.run(history)
            turn.apply(history)
            return turn

        turn = say("f1", "kv_put", {"key": "k", "value": 1})
        assert turn.messages[0]["type"] == "function_call_output"
        assert turn.messages[0]["call_id"] == "f1"
        _, name, arguments = order("f2", "nobody", "q")
        say("f2", name, arguments)
        assert [item.get("type", "note") for item in history[1:]] == ["note"]
        transaction.rollback()


def test_messages_blocks_and_the_users_words_beside_results(server):
    with agenttx.Client(server.address).transaction(agent_id="a") as transaction:
        calls = FunctionCalls(transaction, names={"kv_put": "kv.put", "insert": "record.insert"})
        history: list[Any] = [{"role": "user", "content": "Do it."}]

        def say(call_id: str, name: str, arguments: Any) -> Any:
            block = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            history.append({"role": "assistant", "content": [{"type": "text", "text": "Well."}, block]})
            turn = calls.run(history)
            turn.apply(history)
            return turn

        turn = say("t1", "kv_put", {"key": "k", "value": 1})
        assert turn.messages[0]["content"][0]["type"] == "tool_result"
        assert turn.messages[0]["content"][0]["is_error"] is False
        words = {"type": "text", "text": "And hurry."}
        history[-1]["content"].append(words)
        _, name, arguments = order("t2", "nobody", "z")
        say("t2", name, arguments)
        assert history[1] == {"role": "user", "content": [words]}
        assert "failed" in history[2]["content"]
        assert len(history) == 3
        transaction.rollback()


def test_the_servers_tools_as_definitions(server):
    with agenttx.Client(server.address) as client:
        tools = [one for one in client.tools() if one.name.startswith("kv.")]
    assert function_names(tools) == {"kv_delete": "kv.delete", "kv_get": "kv.get", "kv_put": "kv.put"}
    chat = function_definitions(tools, "CHAT_COMPLETIONS")[2]
    assert chat["function"]["name"] == "kv_put"
    assert set(chat["function"]["parameters"]["properties"]) == {"key", "value"}
    assert function_definitions(tools, "MESSAGES")[2]["input_schema"]["type"] == "object"
    assert function_definitions(tools, "RESPONSES")[2]["strict"] is False


def test_names_that_a_model_could_not_tell_apart_are_refused(tmp_path: Path):
    def named(name: str) -> agenttx.Tool:
        return agenttx.Tool(
            name, "", {}, agenttx.EffectClass.READ_ONLY, agenttx.ToolLocation.WORKER, None, 0, False
        )

    with pytest.raises(ValueError, match=r"'a\.b' and 'a_b' are both 'a_b'"):
        function_names([named("a.b"), named("a_b")])
    with pytest.raises(ValueError, match="longer than the 64"):
        function_names([named("x" * 65)])
