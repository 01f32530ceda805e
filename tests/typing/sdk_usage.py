"""What a user writes, for a strict type checker; never run. Each `type: ignore` marks a mistake that must be found."""

from collections.abc import AsyncIterator, Generator, Iterator
from datetime import timedelta
from typing import Any, assert_type

import agenttx
from agenttx import (
    AsyncClient,
    AsyncGraph,
    AsyncRunStream,
    AsyncTransaction,
    CancelStepResult,
    Client,
    CommitResult,
    DependencyGraph,
    Done,
    Event,
    EventMode,
    Graph,
    GraphEvent,
    HealthStatus,
    Isolation,
    OnConflict,
    OnUndoFailure,
    Policy,
    Reference,
    ResolveStepResult,
    RetryPolicy,
    RootCause,
    RunOutcome,
    RunReport,
    RunState,
    RunStream,
    Step,
    StepInDoubt,
    StepOutcome,
    StepResolution,
    StepRolledBack,
    Strategy,
    SubmittedStep,
    Tls,
    Transaction,
    TransactionInfo,
    call,
    literal,
)


def steps(client: Client) -> None:
    with client.transaction(
        agent_id="a", policy=Policy(max_local_depth=1), deadline=timedelta(hours=1)
    ) as tx:
        assert_type(tx, Transaction)
        user = tx.step("record.insert", table="users", record={"id": 1}, step_timeout=2.5)
        assert_type(user, StepOutcome)
        assert_type(user["id"], Any)
        assert_type(user.ref("id", 0), Reference)
        name: str = user["name"]
        tx.step("kv.put", key="k", value=[user.ref("id"), literal(name), f"{user.ref('id')}"])
        tx.call("kv.put", {"step_timeout": 1}, request_id="r")
        assert_type(
            tx.group([call("kv.get", key="a"), Step("kv.get", {"key": "b"})]), tuple[StepOutcome, ...]
        )
        assert_type(tx.commit(), CommitResult)


def failures(tx: Transaction) -> str:
    try:
        tx.step("x")
    except StepRolledBack as failure:
        assert_type(failure.strategy, Strategy)
        assert_type(failure.constraints, tuple[str, ...])
        assert_type(failure.next_step_id, int)
        return failure.hint
    except agenttx.errors.CommitConflict as conflict:
        return conflict.key
    except agenttx.InvalidArgument as refusal:
        return refusal.violations[0].field
    return ""


def doubts(client: Client, tx: Transaction) -> Any:
    try:
        tx.step("x")
    except StepInDoubt as doubt:
        assert_type(doubt.step_id, int)
        assert_type(doubt.outcome, StepOutcome | None)
        assert_type(tx.resolve_step(doubt.step_id, "SUCCEEDED", output={"id": 1}), ResolveStepResult)
    resolved = client.resolve_step("t", 1, StepResolution.FAILED, error="no")
    assert_type(resolved.outcome, StepOutcome | None)
    assert_type(tx.cancel_step(reason="slow"), CancelStepResult)
    return client.cancel_step("t", 1).state


def options(client: Client) -> Transaction:
    return client.transaction(
        agent_id="a",
        isolation=Isolation.SERIALIZABLE,
        crash_policy="ABORT",
        idle_timeout=0,
        step_timeout=timedelta(seconds=5),
        deadline=3600.0,
        policy=Policy(on_conflict=OnConflict.REWIND, on_undo_failure=OnUndoFailure.CONTINUE),
    )


def streams(tx: Transaction) -> None:
    with tx.stream() as stream:
        first = stream.submit("kv.put", key="k", value=1)
        assert_type(first, SubmittedStep)
        assert_type(stream.step("kv.put", key="k", value=first.ref("value")), StepOutcome)
        assert_type(first.result(), StepOutcome)


def next_action(state: RunState) -> Step | Done:
    assert_type(state.constraints, tuple[str, ...])
    return Done() if state.step_id > 3 else Step("kv.put", {"key": "k", "value": state.ref(1, "id")})


def dialogue() -> Generator[Step, RunState, int]:
    state = yield Step("a")
    yield call("b", hint=state.hint)
    return 7


async def later(state: RunState) -> Step:
    return Step("a")


def plans(client: Client) -> None:
    assert_type(client.run([Step("a"), {"tool": "b"}, lambda state: call("c")], agent_id="a"), RunReport)
    client.run(next_action, agent_id="a")
    client.run(dialogue(), agent_id="a")
    client.run([[call("a"), call("b")], next_step], agent_id="a")


def next_step(state: RunState) -> Step:
    return Step("c")


def reads(client: Client) -> None:
    assert_type(client.get_transaction("t"), TransactionInfo)
    assert_type(client.watch("t"), Iterator[Event])
    assert_type(client.find_root_cause("t", 1, "k"), RootCause | None)
    assert_type(client.dependency_graph("t"), DependencyGraph)
    assert_type(client.health(), HealthStatus)


def runs(client: Client, other: AsyncClient, graph: Graph, distant: AsyncGraph) -> None:
    stream = graph.stream({"a": 1}, thread="t", modes=["VALUES", EventMode.CUSTOM], live=True)
    assert_type(stream, RunStream)
    assert_type(next(stream), GraphEvent)
    assert_type(stream.outcome, RunOutcome | None)
    assert_type(graph.events(run="r", from_offset=3), Iterator[GraphEvent])
    assert_type(client.graphs.events(root_run="r", kinds=["node.failed"]), Iterator[GraphEvent])
    assert_type(distant.stream(), AsyncRunStream)
    assert_type(other.graphs.events(), AsyncIterator[GraphEvent])
    graph.stream(modes=[1])  # type: ignore[list-item]
    graph.events(from_offset="3")  # type: ignore[arg-type]


def connections() -> None:
    Client()
    Client("unix:/run/a.sock", token="t", retry=RetryPolicy(max_attempts=3), connect_timeout=1)
    Client("server:1", tls=Tls(ca="ca.pem", server_name="x"))
    Client("server:1", tls=True)


async def asynchronous(client: AsyncClient) -> None:
    async with client.transaction(agent_id="a") as tx:
        assert_type(tx, AsyncTransaction)
        assert_type(await tx.step("kv.get", key="k"), StepOutcome)
        async with tx.stream() as stream:
            assert_type(await (await stream.submit("a")).result(), StepOutcome)
        assert_type(await tx.cancel_step(1), CancelStepResult)
        assert_type(await tx.resolve_step(1, "RETRY"), ResolveStepResult)
    assert_type(client.watch("t"), AsyncIterator[Event])
    assert_type(await client.run([later, next_step, Step("a")], agent_id="a"), RunReport)
    await client.run(next_action, agent_id="a")


def mistakes(client: Client, tx: Transaction, other: AsyncClient) -> None:
    client.transaction()  # type: ignore[call-arg]
    tx.step(7)  # type: ignore[arg-type]
    tx.step("a", step_timeout="soon")  # type: ignore[arg-type]
    tx.group(["a"])  # type: ignore[list-item]
    tx.resolve_step("2", "FAILED")  # type: ignore[arg-type]
    tx.resolve_step(2)  # type: ignore[call-arg]
    tx.rewind("2")  # type: ignore[arg-type]
    tx.next_step_id = 3  # type: ignore[misc]
    client.run("plan", agent_id="a")  # type: ignore[arg-type]
    client.run([later], agent_id="a")  # type: ignore[list-item]
    agenttx.Cleint()  # type: ignore[attr-defined]
    Policy(max_depth=1)  # type: ignore[call-arg]
    outcome: dict[str, str] = tx.step("a")  # type: ignore[assignment]
    outcome.clear()
