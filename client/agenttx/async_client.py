"""The asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from agenttx import approvals, compensations, effects, reads, records, reported_steps, settlement
from agenttx.async_audit import AsyncAudit
from agenttx.async_connection import AsyncConnection
from agenttx.async_graphs import AsyncGraphs
from agenttx.async_lineage import AsyncLineage
from agenttx.async_pipelines import AsyncPipelines
from agenttx.async_plan import AsyncPlan, run_plan_async
from agenttx.async_transaction import AsyncTransaction
from agenttx.endpoint import Endpoint, Tls
from agenttx.errors import RpcError
from agenttx.event_cursor import EventCursor
from agenttx.graph_hosting import AsyncGraphHosting
from agenttx.methods import WATCH_TRANSACTION
from agenttx.opening import DEFAULT_CONNECT_TIMEOUT_SECONDS, begin_request
from agenttx.operation import Operation
from agenttx.plan import RunReport
from agenttx.retry_policy import RetryPolicy
from agenttx.transaction_cursor import TransactionCursor

__all__ = ["AsyncClient"]

T = TypeVar("T")


class AsyncClient:
    """An asynchronous client of one server.

    It connects on first use, inside the running event loop, and keeps one connection, which all tasks of that loop
    share; close it, or use it as a block. From another loop later (a second `asyncio.run`) it connects anew.
    Every changing call carries a request_id of its own, so what is retried never happens twice.

    Args:
        address: `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`; None for AGENTTX_ADDRESS, else `127.0.0.1:50051`.
        token: Sent as bearer token with every call, over TLS, Unix sockets and loopback only; None for AGENTTX_TOKEN.
        tls: A `Tls`, or True for the default authorities; None for plain text.
        retry: When calls are sent again and how long they are tried.
        connect_timeout: Time in seconds until something must answer at the address, on first use; ≥ 0.

    Raises:
        ConfigurationError: the address makes no sense, or a token would cross a network unencrypted.

    Example:
        async with agenttx.AsyncClient("127.0.0.1:50051") as client:
            async with client.transaction(agent_id="billing") as tx:
                user = await tx.step("record.insert", table="users", record={"id": 7, "name": "Ada"})
                await tx.step("kv.put", key="last_user", value=user.ref("id"))
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        tls: Tls | bool | None = None,
        retry: RetryPolicy | None = None,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        endpoint = Endpoint.resolve(address, token=token, tls=tls)
        self._connection = AsyncConnection(endpoint, retry or RetryPolicy(), connect_timeout)
        self._hosting = AsyncGraphHosting(endpoint.address, token, tls)

    @property
    def graphs(self) -> AsyncGraphs:
        """The server's graphs: validate, register, read, draw and compare them."""
        return AsyncGraphs(self._connection, self._hosting)

    @property
    def pipelines(self) -> AsyncPipelines:
        """The server's pipelines: validate, register, run, follow and cancel them."""
        return AsyncPipelines(self._connection)

    @property
    def lineage(self) -> AsyncLineage:
        """Records of pipelines: read, trace, draw, verify and export them."""
        return AsyncLineage(self._connection)

    @property
    def audit(self) -> AsyncAudit:
        """The audit trail: who did what to what and when, read and verified."""
        return AsyncAudit(self._connection)

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._connection.endpoint.address

    async def connect(self) -> None:
        """Connect now, to find out early.

        Raises:
            ConnectionFailed: nothing answered within the connect timeout.
        """
        await self._connection.connect()

    def transaction(
        self,
        *,
        agent_id: str,
        metadata: Mapping[str, str] | None = None,
        policy: records.Policy | None = None,
        isolation: records.Isolation | str | None = None,
        crash_policy: records.CrashPolicy | str | None = None,
        idle_timeout: float | timedelta | None = None,
        step_timeout: float | timedelta | None = None,
        deadline: float | timedelta | None = None,
        keep_records: bool = False,
    ) -> AsyncTransaction:
        """Return a new transaction, begun when its block is entered or by its first call.

        Args:
            agent_id: Name of the agent, for lists and logs; 1 to 256 bytes.
            metadata: Labels to find it by; at most 64 of 1 KiB each.
            policy: Its own rollback policy.
            isolation: What its commit checks: READ_COMMITTED (default) or SERIALIZABLE.
            crash_policy: What becomes of it when its server dies: RESUME (default) or ABORT.
            idle_timeout: Idle time after which it is rolled back, in seconds or as timedelta; 0 never.
            step_timeout: How long its steps may run where neither they nor their tools say, in seconds or as timedelta.
            deadline: Time after which it is rolled back if still open, in seconds or as timedelta.
            keep_records: Whether what its steps give is kept as records when it commits; see docs/lineage.md.
        """
        request = begin_request(
            agent_id=agent_id,
            metadata=metadata,
            policy=policy,
            isolation=isolation,
            crash_policy=crash_policy,
            idle_timeout=idle_timeout,
            step_timeout=step_timeout,
            deadline=deadline,
            keep_records=keep_records,
        )
        return AsyncTransaction(self._connection, TransactionCursor(request))

    def resume(self, transaction_id: str) -> AsyncTransaction:
        """Return an open transaction to go on with, by its id: after a crash of the agent, or in another process."""
        return AsyncTransaction(self._connection, TransactionCursor(transaction_id=transaction_id))

    async def run(
        self,
        plan: AsyncPlan,
        *,
        agent_id: str,
        metadata: Mapping[str, str] | None = None,
        policy: records.Policy | None = None,
        isolation: records.Isolation | str | None = None,
        crash_policy: records.CrashPolicy | str | None = None,
        idle_timeout: float | timedelta | None = None,
        step_timeout: float | timedelta | None = None,
        deadline: float | timedelta | None = None,
        keep_records: bool = False,
        approval_timeout: float | timedelta | None = 0,
    ) -> RunReport:
        """Run a plan in a transaction of its own, following every rollback to where it says, and commit.

        Args:
            plan: As with the synchronous client, and its functions may be coroutines, its generator asynchronous. See
                `agenttx.plan`.
            agent_id: As in `transaction`, like the rest.
            metadata: Labels to find it by.
            policy: Its own rollback policy.
            isolation: What its commit checks.
            crash_policy: What becomes of it when its server dies.
            idle_timeout: Idle time after which it is rolled back.
            step_timeout: How long its steps may run.
            deadline: Time after which it is rolled back.
            keep_records: Whether its steps' outputs are kept as records.
            approval_timeout: How long to wait for a person's decision on a step, in seconds or as timedelta; None for
                as long as it takes, 0 for not at all.

        Returns:
            What was run, what was rolled back and why, the outcomes that stand, and what the commit published.

        Raises:
            TransactionAborted: a step failed for good; the transaction was undone and ended.
            StepAwaitingApproval: nobody has decided on a step in time; the transaction stays open.
        """
        async with self.transaction(
            agent_id=agent_id,
            metadata=metadata,
            policy=policy,
            isolation=isolation,
            crash_policy=crash_policy,
            idle_timeout=idle_timeout,
            step_timeout=step_timeout,
            deadline=deadline,
            keep_records=keep_records,
        ) as transaction:
            return await run_plan_async(transaction, plan, approval_timeout)

    async def get_transaction(self, transaction_id: str) -> records.TransactionInfo:
        """Read a transaction, ended ones too.

        Raises:
            NotFound: there is none of that id, or it isn't yours.
        """
        return await self._perform(reads.get_transaction(transaction_id))

    def list_transactions(
        self,
        *,
        statuses: Iterable[records.TransactionStatus | str] = (),
        agent_id: str = "",
        metadata: Mapping[str, str] | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int = 0,
    ) -> AsyncIterator[records.TransactionSummary]:
        """Iterate over transactions, newest first, reading page after page.

        Args:
            statuses: Only these; empty for all.
            agent_id: Only of this agent; empty for all.
            metadata: Only with all of these labels.
            created_from: Only opened at or after; an aware datetime.
            created_before: Only opened before; an aware datetime.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        wanted = tuple(statuses)
        return self._pages(
            lambda token: reads.list_transactions(
                token,
                statuses=wanted,
                agent_id=agent_id,
                metadata=metadata,
                created_from=created_from,
                created_before=created_before,
                page_size=page_size,
            )
        )

    def list_steps(
        self, transaction_id: str, *, step_id: int = 0, include_rewound: bool = True, page_size: int = 0
    ) -> AsyncIterator[records.StepAttempt]:
        """Iterate over the attempts of a transaction's steps in the order in which they began.

        Args:
            transaction_id: The transaction.
            step_id: Only of this step; 0 for all.
            include_rewound: Whether attempts that were rewound since are listed.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        return self._pages(
            lambda token: reads.list_steps(
                token,
                transaction_id=transaction_id,
                step_id=step_id,
                include_rewound=include_rewound,
                page_size=page_size,
            )
        )

    def tools(self, *, page_size: int = 0) -> AsyncIterator[records.Tool]:
        """Iterate over the tools that steps can call, by name."""
        return self._pages(lambda token: reads.list_tools(token, page_size=page_size))

    async def dependency_graph(
        self, transaction_id: str, *, first_step: int = 0, last_step: int = 0
    ) -> records.DependencyGraph:
        """Read a transaction's dependency graph, of all its steps or from `first_step` to `last_step`."""
        return await self._perform(
            reads.dependency_graph(transaction_id, first_step=first_step, last_step=last_step)
        )

    async def draw_dependency_graph(
        self,
        transaction_id: str,
        form: records.GraphFormat | str = records.GraphFormat.MERMAID,
        *,
        first_step: int = 0,
        last_step: int = 0,
    ) -> str:
        """Return a transaction's dependency graph as MERMAID, DOT or JSON text."""
        return await self._perform(
            reads.drawn_dependency_graph(transaction_id, form, first_step=first_step, last_step=last_step)
        )

    async def find_root_cause(self, transaction_id: str, step_id: int, key: str) -> records.RootCause | None:
        """Find the earliest step that the value under an input key of a step came from; None if none is known."""
        return await self._perform(reads.root_cause(transaction_id, step_id, key))

    async def get_state(self, key: str, *, namespace: str = "") -> records.StateEntry:
        """Read one key of the committed state; `namespace` is empty for `kv.*`."""
        return await self._perform(reads.get_state(key, namespace=namespace))

    def scan_state(
        self, prefix: str = "", *, namespace: str = "", page_size: int = 0
    ) -> AsyncIterator[records.StateEntry]:
        """Iterate over the committed state, by key, where keys begin with the prefix."""
        return self._pages(
            lambda token: reads.scan_state(token, prefix=prefix, namespace=namespace, page_size=page_size)
        )

    def list_compensations(
        self,
        transaction_id: str = "",
        *,
        states: Iterable[records.CompensationState | str] = (),
        page_size: int = 0,
    ) -> AsyncIterator[records.Compensation]:
        """Iterate over undo actions, the oldest transaction first, the newest registered of each first.

        Args:
            transaction_id: Only of this transaction; empty for all.
            states: Only in these states; empty for those that need someone (FAILED and AWAITING_AGENT).
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        wanted = tuple(states)
        return self._pages(
            lambda token: compensations.list_compensations(
                token, transaction_id=transaction_id, states=wanted, page_size=page_size
            )
        )

    async def retry_compensation(
        self, transaction_id: str, compensation_id: str
    ) -> records.CompensationResult:
        """Run a failed undo action again, and complete the rewind or abort if it alone held it.

        Args:
            transaction_id: The transaction, open or ended.
            compensation_id: The undo action.

        Raises:
            NotFound: there is no such transaction, or it has no such undo action.
            PreconditionFailed: the undo action hasn't failed.
        """
        return await self._perform(compensations.retry_compensation(transaction_id, compensation_id))

    async def resolve_compensation(
        self,
        transaction_id: str,
        compensation_id: str,
        resolution: records.CompensationResolution | str,
        *,
        note: str = "",
    ) -> records.CompensationResult:
        """Say what became of an effect whose undo failed, and complete the rewind or abort if it alone held it.

        Args:
            transaction_id: The transaction, open or ended.
            compensation_id: The undo action.
            resolution: UNDONE if it was undone by other means, KEPT if it stays; the transaction names it then.
            note: What is to be remembered about it; at most 4 KiB.

        Raises:
            NotFound: there is no such transaction, or it has no such undo action.
            PreconditionFailed: the undo action hasn't failed.
        """
        return await self._perform(
            compensations.resolve_compensation(transaction_id, compensation_id, resolution, note)
        )

    async def acknowledge_undo(
        self, transaction_id: str, compensation_id: str, *, error: str | BaseException = ""
    ) -> records.CompensationResult:
        """Say that an undo action that the agent has to do was done or, with `error`, that it could not be.

        Args:
            transaction_id: The transaction.
            compensation_id: The newest of its undo actions in the state AWAITING_AGENT.
            error: Why it could not be done; empty if it was.

        Raises:
            NotFound: there is no such transaction, or it has no such undo action.
            PreconditionFailed: the undo action isn't awaited, or not the newest that is.
        """
        return await self._perform(reported_steps.acknowledge_undo(transaction_id, compensation_id, error))

    def list_effects(
        self,
        transaction_id: str = "",
        *,
        states: Iterable[records.EffectState | str] = (),
        channel: str = "",
        page_size: int = 0,
    ) -> AsyncIterator[records.Effect]:
        """Iterate over the outbox, the oldest transaction first, the effects of each in staging order.

        Args:
            transaction_id: Only of this transaction; empty for all.
            states: Only in these states; empty for all.
            channel: Only of this channel; empty for all.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        wanted = tuple(states)
        return self._pages(
            lambda token: effects.list_effects(
                token, transaction_id=transaction_id, states=wanted, channel=channel, page_size=page_size
            )
        )

    async def cancel_step(
        self, transaction_id: str, step_id: int, *, reason: str = ""
    ) -> records.CancelStepResult:
        """Stop a running step and return when it is settled; whoever sent it gets its answer.

        It is settled by what its tool promises: it failed and is undone, or it is in doubt. The tool is asked to stop
        and may have taken effect; it may also end before it can be stopped.

        Args:
            transaction_id: The transaction.
            step_id: The step; of a group any member, the others go on.
            reason: Why; goes into the history.

        Raises:
            NotFound: there is no such transaction.
            PreconditionFailed: the step does not run.
        """
        return await self._perform(settlement.cancel_step(transaction_id, step_id, reason))

    async def resolve_step(
        self,
        transaction_id: str,
        step_id: int,
        resolution: records.StepResolution | str,
        *,
        output: Any = None,
        error: str = "",
        sub_step: int = 0,
    ) -> records.ResolveStepResult:
        """Say what became of a step in doubt; the request that sent it is answered accordingly from now on.

        Args:
            transaction_id: The transaction.
            step_id: The step in doubt.
            resolution: SUCCEEDED if it took effect, FAILED if it didn't (it is decided on like any failure), RETRY to
                run the same call again under the same key, which returns when that has run.
            output: What the step returned, as a JSON value; only with SUCCEEDED.
            error: What went wrong, as its tool would have said it: a hint is made of it; only with FAILED.
            sub_step: The sub-step in doubt, from 1; its step goes on then. 0 for the step itself.

        Raises:
            NotFound: there is no such transaction, or it has no such step.
            PreconditionFailed: the step is not in doubt.
            InvalidValue: the output can't be sent exactly; nothing was sent.
        """
        return await self._perform(
            settlement.resolve_step(transaction_id, step_id, resolution, output, error, sub_step=sub_step)
        )

    def approvals(
        self,
        transaction_id: str = "",
        *,
        states: Iterable[records.ApprovalState | str] = (),
        page_size: int = 0,
    ) -> AsyncIterator[records.Approval]:
        """Iterate over steps that wait, or waited, for a person, the one asked for first first.

        Args:
            transaction_id: Only of this transaction; empty for all.
            states: Only in these states; empty for those that wait (PENDING).
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        wanted = tuple(states)
        return self._pages(
            lambda token: approvals.list_approvals(
                token, transaction_id=transaction_id, states=wanted, page_size=page_size
            )
        )

    async def approve(
        self, transaction_id: str, approval_id: str, *, comment: str = "", decided_by: str = ""
    ) -> records.Approval:
        """Say yes to a step that waits: it runs when it is sent again, once, with exactly these arguments.

        Args:
            transaction_id: The transaction.
            approval_id: The approval, as `approvals` and `StepAwaitingApproval` say.
            comment: What is to be remembered about it; at most 4 KiB.
            decided_by: Who decides, for the history; empty for the address that the call comes from.

        Raises:
            NotFound: there is no such transaction, or it has no such approval.
            ApprovalDecided: somebody else was first, or it was withdrawn.
        """
        return await self._perform(approvals.approve(transaction_id, approval_id, comment, decided_by))

    async def reject(
        self, transaction_id: str, approval_id: str, *, comment: str = "", decided_by: str = ""
    ) -> records.Approval:
        """Say no to a step that waits: it fails, with the comment as its hint, and nothing before it is undone.

        Args:
            transaction_id: The transaction.
            approval_id: The approval, as `approvals` and `StepAwaitingApproval` say.
            comment: Why; the agent is told. At most 4 KiB.
            decided_by: Who decides, for the history; empty for the address that the call comes from.

        Raises:
            NotFound: there is no such transaction, or it has no such approval.
            ApprovalDecided: somebody else was first, or it was withdrawn.
        """
        return await self._perform(approvals.reject(transaction_id, approval_id, comment, decided_by))

    async def requeue_effect(self, transaction_id: str, effect_id: str) -> records.Effect:
        """Have a DEAD effect delivered after all, with fresh attempts; return it as it is now.

        Args:
            transaction_id: The transaction.
            effect_id: The effect.

        Raises:
            NotFound: there is no such transaction, or it has no such effect.
            PreconditionFailed: the effect isn't DEAD.
        """
        return await self._perform(effects.requeue_effect(transaction_id, effect_id))

    async def discard_effect(
        self, transaction_id: str, effect_id: str, *, reason: str = ""
    ) -> records.Effect:
        """Give up an effect that is READY or DEAD; return it as it is now. A delivery under way may still arrive.

        Args:
            transaction_id: The transaction.
            effect_id: The effect.
            reason: Why, for the transaction's events; at most 4 KiB.

        Raises:
            NotFound: there is no such transaction, or it has no such effect.
            PreconditionFailed: the effect was delivered or discarded already, or its transaction is still open.
        """
        return await self._perform(effects.discard_effect(transaction_id, effect_id, reason))

    async def watch(self, transaction_id: str, *, from_sequence: int = 1) -> AsyncIterator[records.Event]:
        """Iterate over a transaction's events, past ones first and then as they happen; each exactly once.

        A lost connection is mended and the watch goes on where it was. It ends once the transaction has ended and
        all its effects are settled. Stop earlier by leaving the loop and closing the iterator (or dropping it).

        Args:
            transaction_id: The transaction.
            from_sequence: The first event wanted, from 1.

        Raises:
            OutOfRange: the events from there on are no longer kept.
        """
        cursor = EventCursor(transaction_id, from_sequence, self._connection.retry)
        while True:
            try:
                async for message in self._connection.stream(WATCH_TRANSACTION, cursor.open()):
                    if (event := cursor.take(message)) is not None:
                        yield event
            except RpcError as error:
                wait = cursor.wait_after(error)
                if wait is None:
                    raise
            else:
                return
            await self._connection.retry.async_sleep(wait)

    async def health(self, service: str = "") -> records.HealthStatus:
        """Ask the server how it is, as a whole or one service of it (`liveness` and `readiness` are names too)."""
        return await self._perform(reads.health(service))

    async def close(self) -> None:
        """Close the connection; later calls raise ClientClosed. Open transactions stay open at the server.

        Functions of graphs that were registered are hosted no longer; those that run are waited for.
        """
        await self._hosting.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<agenttx.AsyncClient {self.address}>"

    async def _perform(self, operation: Operation[T]) -> T:
        return await self._connection.perform(operation)

    async def _pages(self, page: Callable[[str], Operation[reads.Page[T]]]) -> AsyncIterator[T]:
        token = ""
        while True:
            part = await self._perform(page(token))
            for entry in part.entries:
                yield entry
            token = part.next_page_token
            if not token:
                return
