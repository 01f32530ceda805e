"""What a call is known by: calls that are sent again, out of histories that were trimmed and added to meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.running_server import ServerProcess, server_process

import agenttx
from agenttx import AmbiguousCall
from agenttx.integrations.function_calling import FunctionCalls
from agenttx.integrations.in_process_worker import InProcessWorker
from agenttx.worker import tool

PAID: list[int] = []
SYSTEM = {"role": "system", "content": "Be brief."}
TASK = {"role": "user", "content": "Pay."}


@tool("resent.pay", effects="irreversible")
def pay(ctx: Any, amount: int) -> dict[str, int]:
    """Pay, which nothing takes back."""
    PAID.append(amount)
    return {"payment": len(PAID)}


@tool("resent.fail", effects="read_only")
def fail(ctx: Any) -> None:
    """Fail."""
    raise ValueError("no such thing")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with (
        server_process(tmp_path_factory.mktemp("server")) as process,
        InProcessWorker([pay, fail], process.address),
    ):
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[agenttx.Client]:
    PAID.clear()
    with agenttx.Client(server.address) as connected:
        yield connected


@pytest.fixture
def transaction(client: agenttx.Client) -> agenttx.Transaction:
    return client.transaction(agent_id="a").begin()


def loop(transaction: agenttx.Transaction) -> FunctionCalls:
    return FunctionCalls(transaction, names={"pay": "resent.pay", "fail": "resent.fail", "put": "kv.put"})


def asks(*calls: tuple[str, str, Any]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for call_id, name, arguments in calls
        ],
    }


def say(calls: FunctionCalls, history: list[Any], *asked: tuple[str, str, Any], **settings: Any) -> Any:
    history.append(asks(*asked))
    turn = calls.run(history, **settings)
    turn.apply(history)
    return turn


def paid(call_id: str, amount: Any) -> tuple[str, str, Any]:
    return call_id, "pay", {"amount": amount}


def put(call_id: str, key: str) -> tuple[str, str, Any]:
    return call_id, "put", {"key": f"resent-{key}", "value": 1}


@pytest.mark.parametrize("is_new_process", [False, True])
@pytest.mark.parametrize("change", ["added", "trimmed", "alone"])
def test_a_call_that_is_sent_again_out_of_a_changed_history_is_not_run_again(
    client, transaction, is_new_process: bool, change: str
):
    calls = loop(transaction)
    history = [TASK]
    say(calls, history, paid("u7", 20))
    history.append(asks(paid("x9", 21)))
    lost = calls.run(history)

    changed = {"added": [SYSTEM, *history], "trimmed": history[1:], "alone": history[-1:]}[change]
    if is_new_process:
        calls = loop(client.resume(transaction.transaction_id))
    assert calls.run(changed).messages == lost.messages
    assert PAID == [20, 21]


def test_arguments_that_are_written_otherwise_are_the_same_call(client, transaction):
    calls = loop(transaction)
    first = calls.run([TASK, asks(("c", "put", {"key": "resent-w", "value": 20}))])
    again = calls.run([TASK, asks(("c", "put", {"value": 20.0, "key": "resent-w"}))])
    assert again.messages == first.messages
    assert transaction.next_step_id == 2


def test_two_payments_of_one_sum_are_two_and_an_id_with_other_arguments_is_another_call(transaction):
    calls = loop(transaction)
    history = [TASK]
    say(calls, history, paid("c1", 5), paid("c2", 5))
    say(calls, history[:1], paid("c1", 6))
    assert PAID == [5, 5, 6]


def test_ids_that_a_provider_repeats_are_told_apart_by_the_answers(client, transaction):
    history = [TASK]
    for _ in range(3):
        say(loop(client.resume(transaction.transaction_id)), history, paid("call_0", 10))
    assert PAID == [10, 10, 10]
    loop(client.resume(transaction.transaction_id)).run(history[:-1])
    assert PAID == [10, 10, 10]


def test_what_cannot_be_told_apart_is_an_error_until_the_turn_is_named(client, transaction):
    calls = loop(transaction)
    history = [TASK]
    for _ in range(2):
        say(calls, history, paid("call_0", 10))
    trimmed = [SYSTEM, asks(paid("call_0", 10))]
    for one in (calls, loop(client.resume(transaction.transaction_id))):
        with pytest.raises(AmbiguousCall, match=r"2 calls .* holds 0"):
            one.run(trimmed)
    for _ in range(2):
        calls.run(trimmed, turn_id="third")
    loop(client.resume(transaction.transaction_id)).run(trimmed, turn_id="third")
    assert PAID == [10, 10, 10]


def test_after_a_rollback_the_same_id_is_asked_for_anew(transaction):
    calls = loop(transaction)
    history = [TASK]
    turn = say(calls, history, put("call_0", "again"), ("call_1", "fail", {}))
    assert turn.is_rolled_back
    turn = say(calls, history, put("call_0", "again"))
    assert [outcome.status for outcome in turn.outcomes] == ["SUCCESS"]
    assert not turn.is_rolled_back


@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_rollback_finds_what_was_undone_in_a_trimmed_history(client, transaction, is_new_process: bool):
    calls = loop(transaction)
    history = [SYSTEM, *({"role": "user", "content": f"u{i}"} for i in range(4))]
    say(calls, history, put("c1", "a"))
    say(calls, history, put("c2", "b"))
    history = [history[0], *history[3:], {"role": "user", "content": "Only Oslo."}]
    if is_new_process:
        calls = loop(client.resume(transaction.transaction_id))
    asked = [*history, asks(("c3", "fail", {}))]
    transaction.rewind(1)
    turn = calls.run(asked)
    assert turn.is_rolled_back
    shorter = asked[2:]
    calls.run(shorter).apply(shorter)  # trimmed once more before it was applied
    assert shorter[:-1] == [{"role": "user", "content": "u3"}, {"role": "user", "content": "Only Oslo."}]
    turn.apply(asked)
    assert asked[:-1] == [SYSTEM, *({"role": "user", "content": w} for w in ("u2", "u3", "Only Oslo."))]
    assert "step 1 (kv.put), step 2 (kv.put)" in asked[-1]["content"] or is_new_process
    assert "except" not in asked[-1]["content"]


def test_a_rollback_whose_calls_the_history_no_longer_holds_says_so(transaction):
    calls = loop(transaction)
    history = [TASK, *({"role": "user", "content": f"u{i}"} for i in range(9))]
    say(calls, history, put("c1", "a"))
    say(calls, history, put("c2", "b"))
    transaction.rewind(1)
    history = [SYSTEM, asks(("c3", "fail", {}))]
    turn = calls.run(history)
    turn.apply(history)
    assert history[:-1] == [SYSTEM]
    assert "except step 1 (kv.put), step 2 (kv.put), which it no longer held" in history[-1]["content"]


def test_what_cannot_be_read_is_told_so_and_never_answered_as_a_call_before_it(transaction):
    calls = loop(transaction)
    assert calls.run([TASK, asks(("m", "fail", {}))]).is_rolled_back
    turn = calls.run([TASK, asks(("m", "fail", []))])
    assert "not a JSON object" in turn.messages[0]["content"]
    assert not turn.is_rolled_back
