# ruff: noqa: PT012 - how a block ends is what is tested here, and a block has statements
"""Both clients against the real server: what an agent does, from beginning to end."""

import json
import uuid
from pathlib import Path

import pytest
from tests.support.client_kinds import connect
from tests.support.running_server import ServerProcess, server_process

from agenttx import (
    CommitConflict,
    EventType,
    InvalidArgument,
    NotFound,
    Policy,
    RequestIdReused,
    StepInDoubt,
    StepRolledBack,
    StepStatus,
    Strategy,
    TransactionAborted,
    TransactionEnded,
    TransactionStatus,
    WrongStep,
    call,
    literal,
)

__all__ = ["connect"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with server_process(tmp_path_factory.mktemp("data"), tools="tests.support.sample_tools") as process:
        yield process


@pytest.fixture
def client(server: ServerProcess, connect):
    return connect(server.address)


@pytest.fixture
def name() -> str:
    """A name that no other test's keys and tables begin with."""
    return f"t{uuid.uuid4().hex[:12]}"


def test_what_a_transaction_wrote_is_there_after_its_commit_and_not_before(client, name):
    with client.transaction(agent_id="writer", metadata={"test": name}) as tx:
        tx.step("kv.put", key=name, value={"n": 2**53 + 1})
        assert not client.get_state(name).found

    assert client.get_state(name).value == {"n": 2**53 + 1}
    assert [entry.key for entry in client.scan_state(name)] == [name]
    info = client.get_transaction(tx.transaction_id)
    assert info.status is TransactionStatus.COMMITTED
    assert info.metadata == {"test": name}
    assert info.ended_at >= info.created_at
    (summary,) = client.list_transactions(metadata={"test": name})
    assert summary.transaction_id == tx.transaction_id


def test_an_exception_leaves_nothing_behind(client, name):
    with pytest.raises(ZeroDivisionError), client.transaction(agent_id="a") as tx:
        tx.step("kv.put", key=name, value=1)
        _ = 1 / 0

    assert not client.get_state(name).found
    assert client.get_transaction(tx.transaction_id).status is TransactionStatus.ROLLED_BACK


def test_the_wrong_choice_made_early_is_found_late_and_done_again(client, name):
    customers, orders = f"{name}_customers", f"{name}_orders"
    with client.transaction(agent_id="seeder") as tx:
        tx.step("record.insert", table=customers, record={"id": 2, "name": "Ada"})

    with client.transaction(agent_id="billing") as tx:
        tx.step("kv.put", key=f"{name}/start", value=True)
        chosen = tx.step("sample.echo", value={"customer_id": 1})
        tx.step("sample.echo", value="unrelated")
        with pytest.raises(StepRolledBack) as raised:
            tx.step(
                "record.insert",
                table=orders,
                record={"id": 10, "customer_id": chosen.ref("customer_id")},
                references={"customer_id": customers},
            )

        failure = raised.value
        assert failure.strategy is Strategy.DEPENDENCY_JUMP
        assert failure.category == "foreign_key_violation"
        assert failure.next_step_id == 2
        assert failure.decision.traced_key == "customer_id"
        assert failure.hint.startswith("Hint: ")
        assert tx.constraints == (failure.hint,)
        info = client.get_transaction(tx.transaction_id)
        assert (info.replayed_steps, info.budget_spent) == (3, 3)
        assert info.replay_budget == failure.decision.budget_total

        chosen = tx.step("sample.echo", value={"customer_id": 2})
        tx.step(
            "record.insert",
            table=orders,
            record={"id": 10, "customer_id": chosen.ref("customer_id")},
            references={"customer_id": customers},
        )
        cause = client.find_root_cause(tx.transaction_id, 3, "customer_id")
        assert cause.step_id == 2
        assert [element.step_id for element in cause.path] == [3, 2]

    attempts = list(client.list_steps(tx.transaction_id))
    assert [(a.step_id, a.attempt, a.rewound) for a in attempts] == [
        (1, 1, False),
        (2, 1, True),
        (2, 2, False),
        (3, 1, True),
        (3, 2, False),
        (4, 1, True),
    ]
    assert "violates foreign key" in attempts[-1].raw_error
    graph = client.dependency_graph(tx.transaction_id)
    assert [(edge.from_step, edge.to_step, edge.target_key) for edge in graph.edges] == [
        (2, 3, "customer_id")
    ]
    assert "customer_id" in client.draw_dependency_graph(tx.transaction_id, "DOT")


def test_a_run_follows_hints_to_the_commit(client, name):
    customers = f"{name}_customers"
    with client.transaction(agent_id="seeder") as tx:
        tx.step("record.insert", table=customers, record={"id": 2})

    def choose(state):
        return call("sample.echo", value={"customer_id": 2 if state.hint else 1})

    report = client.run(
        [
            call("kv.put", key=name, value=1),
            choose,
            lambda state: call(
                "record.insert",
                table=f"{name}_orders",
                record={"id": 1, "customer_id": state.ref(2, "customer_id")},
                references={"customer_id": customers},
            ),
            call("effect.stage", channel="mail", payload={"to": "${steps.2.customer_id}"}),
        ],
        agent_id="runner",
    )

    assert report.steps_executed == 6
    assert [failure.strategy for failure in report.rollbacks] == [Strategy.DEPENDENCY_JUMP]
    assert report.outputs[1] == {"customer_id": 2}
    assert report.commit.steps_committed == 4
    assert report.commit.effects_dispatched == 1


def test_a_run_that_can_not_be_saved_ends_as_aborted(client):
    with pytest.raises(TransactionAborted) as raised:
        client.run([call("sample.fail", message="no luck")], agent_id="unlucky")

    assert "reset" in raised.value.abort_reason or "budget" in raised.value.abort_reason
    assert client.get_transaction(raised.value.transaction_id).status is TransactionStatus.FAILED


def test_a_group_sees_the_state_before_it_and_is_answered_in_order(client, name):
    with client.transaction(agent_id="a") as tx:
        tx.step("kv.put", key=name, value=1)
        one, two, three = tx.group(
            [
                call("kv.get", key=name),
                call("sample.slow", seconds=0.05, value="slow"),
                call("kv.put", key=f"{name}/3", value=3),
            ]
        )
        assert (one["value"], two.output, three["value"]) == (1, "slow", 3)
        assert (one.step_id, three.step_id, tx.next_step_id) == (2, 4, 5)


def test_a_step_in_doubt_is_left_by_a_rollback_that_accepts_it(client, tmp_path):
    tx = client.transaction(agent_id="a").begin()
    outcome = tx.try_step("sample.lose_outcome", log=str(tmp_path / "log"), entry="letter")
    assert outcome.status is StepStatus.IN_DOUBT
    with pytest.raises(StepInDoubt, match="rewind or roll back with accept_irreversible"):
        tx.rollback("enough")
    result = tx.rollback("enough", accept_irreversible=True)
    assert [kept.tool_name for kept in result.kept_effects] == ["sample.lose_outcome"]
    assert tx.ended


def test_members_that_touch_the_same_key_conflict(client, name):
    with client.transaction(agent_id="a") as tx:
        outcomes = tx.try_group([call("kv.put", key=name, value=1), call("kv.put", key=name, value=2)])
        assert [outcome.status for outcome in outcomes] == [
            StepStatus.SUCCESS,
            StepStatus.ROLLBACK_TRIGGERED,
        ]
        assert outcomes[1].error_category == "conflict"
        tx.rollback()


def test_outputs_too_large_for_one_answer_come_all_the_same(client):
    with client.transaction(agent_id="a") as tx:
        outcomes = tx.group([call("sample.large", size=3_000_000) for _ in range(3)])
        assert [len(outcome["text"]) for outcome in outcomes] == [3_000_000] * 3


def test_steps_over_a_stream_are_the_same_steps(client, name):
    with client.transaction(agent_id="a") as tx:
        with tx.stream() as steps:
            first = steps.submit("kv.put", key=name, value={"n": 1})
            copies = [
                steps.submit("kv.put", key=f"{name}/{n}", value=first.ref("value.n")) for n in range(100)
            ]
            assert copies[-1].result()["value"] == 1
            with pytest.raises(StepRolledBack):
                steps.step("kv.get", key=f"{name}/missing")
            steps.step("kv.put", key=f"{name}/last", value=1)
        assert client.get_transaction(tx.transaction_id).next_step_id == tx.next_step_id
    assert client.get_state(f"{name}/last").found


def test_a_literal_is_not_a_reference_and_plain_text_may_be(client, name):
    hostile = "costs ${steps.1.value} or $${x}"
    with client.transaction(agent_id="a") as tx:
        secret = tx.step("kv.put", key=name, value="secret")
        kept = tx.step("sample.echo", value=literal(hostile))
        read = tx.step("sample.echo", value="say ${steps.1.value}")
        both = tx.step("sample.echo", value=f"{literal('${steps.9}')} and {secret.ref('value')}")
        whole = tx.step("sample.echo", value=secret)
    assert kept.output == hostile
    assert read.output == "say secret"
    assert both.output == "${steps.9} and secret"
    assert whole.output == {"key": name, "value": "secret"}


@pytest.mark.parametrize(
    "value",
    [
        2**53 + 1,
        2**63,
        2**64 - 1,
        -(2**63),
        -0.0,
        1.0,
        1,
        True,
        None,
        "",
        "a\u0000b",
        "\U0001f600",
        "AAEC/w==",
        "12345678901234567890",
        {"1": "a", "01": "b"},
        {"": 1},
        [[], {}],
        5e-324,
        1.7976931348623157e308,
    ],
    ids=repr,
)
def test_values_come_back_identical(client, value):
    with client.transaction(agent_id="a") as tx:
        outcome = tx.step("sample.echo", value=value)
        again = tx.step("sample.echo", value=outcome.ref())
        (attempt,) = client.list_steps(tx.transaction_id, step_id=1)
    for found in (outcome.output, again.output, attempt.output, attempt.arguments["value"]):
        # Members come in canonical order, which JSON objects don't have.
        assert json.dumps(found, sort_keys=True) == json.dumps(value, sort_keys=True)
        assert type(found) is type(value)


def test_a_watch_tells_the_whole_story_once(client, name):
    with client.transaction(agent_id="a") as tx:
        tx.step("kv.put", key=name, value=1)
        tx.step("effect.stage", channel="mail", payload={})

    events = list(client.watch(tx.transaction_id))

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    types = [event.type for event in events]
    assert types[0] is EventType.TRANSACTION_BEGUN
    assert EventType.TRANSACTION_COMMITTED in types
    assert types[-1] is EventType.EFFECT_DELIVERED
    assert list(client.watch(tx.transaction_id, from_sequence=3)) == events[2:]


def test_a_dry_run_says_what_a_rewind_would_undo_and_the_rewind_undoes_it(client, name):
    with client.transaction(agent_id="a") as tx:
        tx.step("kv.put", key=name, value=1)
        tx.step("fs.write", path=f"{name}.txt", content="x")
        tx.step("effect.stage", channel="mail", payload={})

        plan = tx.rewind(2, dry_run=True).plan
        assert [step.step_id for step in plan.steps] == [2, 3]
        assert plan.undo_actions_total == 1
        assert plan.staged_effects_total == 1

        result = tx.rewind(2, reason="again")
        assert (result.next_step_id, result.compensations_run) == (2, 1)
        assert tx.step("sample.echo", value=1).step_id == 2
    assert client.get_transaction(tx.transaction_id).steps_completed == 2


def test_another_process_takes_a_transaction_up(server: ServerProcess, connect, name):
    first, second = connect(server.address), connect(server.address)
    tx = first.transaction(agent_id="a").begin()
    tx.step("kv.put", key=name, value=1)

    with second.resume(tx.transaction_id) as taken:
        assert taken.next_step_id == 2
        taken.step("kv.put", key=f"{name}/2", value="${steps.1.value}")

    with pytest.raises(TransactionEnded) as raised:
        tx.step("kv.put", key=name, value=3)
    assert raised.value.status == "COMMITTED"
    assert tx.ended
    assert first.get_state(f"{name}/2").value == 1


def test_a_holder_that_was_overtaken_is_told_and_catches_up(client, name):
    tx = client.transaction(agent_id="a").begin()
    other = client.resume(tx.transaction_id).begin()
    other.step("kv.put", key=name, value=1)

    with pytest.raises(WrongStep) as raised:
        tx.step("kv.put", key=name, value=2)
    assert raised.value.expected_step == 2
    tx.refresh()
    tx.step("kv.put", key=name, value=2)
    tx.commit()
    assert client.get_state(name).value == 2


def test_two_transactions_that_wrote_one_key_never_both_commit(client, name):
    first, second = (client.transaction(agent_id="a").begin() for _ in range(2))
    first.step("kv.put", key=name, value=1)
    second.step("kv.put", key=name, value=2)
    first.commit()

    with pytest.raises(CommitConflict) as raised:
        second.commit()

    assert name in raised.value.key
    assert second.ended
    assert client.get_state(name).value == 1
    assert client.get_transaction(second.transaction_id).status is TransactionStatus.FAILED


def test_an_agent_that_starts_again_repeats_its_requests_and_nothing_runs_twice(client, name):
    tx = client.transaction(agent_id="a").begin()
    tx.call("sample.inc", {"key": name, "by": 1}, request_id="first")
    tx.call("sample.inc", {"key": name, "by": 10}, request_id="second")

    with client.resume(tx.transaction_id) as again:
        first = again.call("sample.inc", {"by": 1, "key": name}, request_id="first", step_id=1)
        assert first.replayed
        assert again.next_step_id == 3
        with pytest.raises(RequestIdReused) as raised:
            again.call("sample.inc", {"key": name, "by": 2}, request_id="first", step_id=1)
        assert raised.value.metadata["request_id"] == "first"
        second = again.call("sample.inc", {"key": name, "by": 10}, request_id="second", step_id=2)
        third = again.call("sample.inc", {"key": name, "by": 100}, request_id="third", step_id=3)
    assert (first.step_id, second.step_id, third.step_id) == (1, 2, 3)
    assert client.get_state(name).value == 111


def test_bad_requests_name_every_bad_field(client):
    with pytest.raises(InvalidArgument) as raised:
        client.transaction(agent_id="", policy=Policy(max_local_depth=17)).begin()
    fields = {violation.field for violation in raised.value.violations}
    assert fields == {"agent_id", "policy.max_local_depth"}


def test_what_does_not_exist_is_not_found(client):
    with pytest.raises(NotFound):
        client.get_transaction(str(uuid.uuid4()))
    with pytest.raises(NotFound):
        client.resume(str(uuid.uuid4())).begin()
    with pytest.raises(NotFound):
        list(client.watch(str(uuid.uuid4())))


def test_tools_come_with_their_schemas(client):
    tools = {tool.name: tool for tool in client.tools(page_size=5)}

    assert list(tools) == sorted(tools)
    assert tools["kv.put"].arguments_schema["required"] == ["key", "value"]
    assert tools["fs.write"].effect_class == "COMPENSATABLE"
    assert tools["sample.send"].effect_class == "IRREVERSIBLE"


def test_the_outbox_gets_what_was_staged(server: ServerProcess, client, name):
    with client.transaction(agent_id="a") as tx:
        tx.step("effect.stage", channel="mail", payload={"name": name})
        result = tx.commit()
    assert (result.effects_dispatched, result.effects_pending, result.dispatch_errors) == (1, 0, ())


def test_pages_are_read_to_the_end(client, name):
    with client.transaction(agent_id="a") as tx, tx.stream() as steps:
        for number in range(120):
            steps.submit("kv.put", key=f"{name}/{number:03}", value=number)

    assert [entry.value for entry in client.scan_state(f"{name}/", page_size=50)] == list(range(120))
    assert len(list(client.list_steps(tx.transaction_id, page_size=50))) == 120


def test_files_are_back_as_they_were(server: ServerProcess, client, name, tmp_path: Path):
    with pytest.raises(RuntimeError, match="enough"), client.transaction(agent_id="a") as tx:
        tx.step("fs.write", path=f"{name}/a.txt", content="x")
        raise RuntimeError("enough")
    with client.transaction(agent_id="a") as tx:
        assert tx.try_step("fs.read", path=f"{name}/a.txt").error_category == "file_not_found"
        tx.rollback()
