"""A lone step of a tool that waits for nothing: run, settled and on its way to the store in one go.

Nearly every step is of this kind, and what a group needs (members, outcomes that come one by one, a task for the
tool, doubts, conflicts) costs more than all that is left here. Whatever is out of the ordinary, a tool that fails
included, is found before anything has changed: :meth:`PromptSteps.begin` then answers None, and the step
goes the general way (group_run.py, group_settlement.py), which says what is wrong. What both write is equal, which
tests/unit/engine/test_prompt_steps.py holds.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from agenttx_server.engine import json_values, references
from agenttx_server.engine.errors import LimitExceeded
from agenttx_server.engine.late_tools import LateTools
from agenttx_server.engine.limits import utf8_size
from agenttx_server.engine.ports import SubStepCall, WriteReceipt
from agenttx_server.engine.recorded_answers import fingerprint
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    CrashPolicy,
    EffectClass,
    EventType,
    Isolation,
    ToolDescription,
    TransactionStatus,
)
from agenttx_server.engine.requests import StepAnswer, StepRequest, StepStatus
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import encode_answer
from agenttx_server.engine.step_context import StepContext
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry
from agenttx_server.engine.transaction_writer import Rows, ToldPayload, TransactionWriter
from agenttx_server.engine.visibility import sees

__all__ = ["PromptStep", "PromptSteps"]

_MICROSECONDS = 1_000_000


class PromptStep:
    """A step that has run: ``answer`` is what is answered once ``write`` is done."""

    __slots__ = ("answer", "rows", "step_id", "transaction", "write")

    def __init__(
        self,
        transaction: Transaction,
        step_id: int,
        rows: Rows,
        answer: StepAnswer,
        write: asyncio.Future[WriteReceipt],
    ) -> None:
        self.transaction = transaction
        self.step_id = step_id
        self.rows = rows
        self.answer = answer
        self.write = write


class PromptSteps:
    """Begins such steps on locked transactions in memory."""

    def __init__(self, services: EngineServices, writer: TransactionWriter, late_tools: LateTools) -> None:
        self._services = services
        self._writer = writer
        self._late_tools = late_tools
        # By name; tools that are prompt are the server's own, so they are few.
        self._known: dict[str, tuple[ToolDescription, ToldPayload | None]] = {}

    def begin(self, entry: CacheEntry, request: StepRequest) -> PromptStep | None:
        """Run a step and hand its rows to the store; None, with nothing changed, where it is no such step.

        Raises what must not happen; what memory holds of the transaction is of no use then.
        """
        transaction = entry.transaction
        call = request.call
        if transaction is None:
            return None
        tools = self._services.tools_of(transaction.record.principal)
        tool = tools.describe(call.tool_name)
        if tool is None or not tool.prompt:
            return None
        told = self._told(tool)
        if told is None or not self._is_next(entry, transaction, request):
            return None
        try:
            parsed, arguments = json_values.parse_canonical(call.arguments_json or "{}")
        except json_values.ValueRefused:
            return None
        if references.contains_reference(arguments):
            return None
        record = transaction.record
        step_id = request.step_id
        attempt = transaction.attempt_counts.get(step_id, 0) + 1
        started_at = self._services.clock.now()
        context = self._context(transaction, request, tool, attempt)
        try:
            output = json_values.canonical(tools.run_prompt(tool.name, parsed, context))
        except (Exception, asyncio.CancelledError, SystemExit):
            return None
        finally:
            context.close("the step has ended")
        limit = self._services.limits.output_bytes
        if call.output_limit_bytes is not None:
            limit = min(limit, call.output_limit_bytes)
        if utf8_size(output) > limit:
            return None
        # From here on nothing is refused.
        edges = transaction.graph.add_step(step_id, arguments=parsed, explicit=(), before_step=step_id)
        answer = StepAnswer(
            status=StepStatus.SUCCESS,
            next_step_id=step_id + 1,
            generation=record.generation,
            attempt=attempt,
            output=output,
            constraints=tuple([constraint.text for constraint in record.constraints])
            if record.constraints
            else (),
            dependencies=edges,
        )
        made = AttemptRecord(
            step_id=step_id,
            attempt=attempt,
            group_first=step_id,
            group_size=1,
            epoch=record.epoch,
            generation=record.generation,
            request_id=call.request_id,
            fingerprint=fingerprint(str(step_id), tool.name, arguments),
            tool_name=tool.name,
            effect_class=tool.effect_class,
            state=AttemptState.COMPLETED,
            arguments=arguments,
            started_at=started_at,
            output=output,
            raw_context=call.raw_context,
            tries=1,
            edges=edges,
            response=encode_answer(answer),
            ended_at=self._services.clock.now(),
            emits_records=tool.emits_records,
        )
        rows = Rows(attempts=[made])
        rows.take_context(context)
        rows.events.append((EventType.STEP_COMPLETED, step_id, attempt, 0, told))
        transaction.complete_attempt(made)
        write = self._writer.queue(
            transaction,
            rows,
            {
                "next_step_id": step_id + 1,
                "furthest_step": max(record.furthest_step, step_id),
            },
        )
        return PromptStep(transaction, step_id, rows, answer, write)

    def ended(self, step: PromptStep) -> Exception | None:
        """Note the end of a step's write; return why it failed, None if the step is durable.

        The transaction is still locked. After a failure what memory holds of it is of no use.
        """
        failed = self._writer.ended(step.transaction, step.rows, step.write)
        if failed is None:
            graph, made = step.transaction.graph, step.rows.attempts[0]
            assert made.output is not None
            # Not before: what is not durable can't be linked to.
            if made.output == made.arguments:  # as of every kv.put: what it holds is known from the arguments
                graph.record_arguments_as_output(step.step_id)
            else:
                graph.record_output(step.step_id, json_values.load(made.output))
        return failed

    def _told(self, tool: ToolDescription) -> ToldPayload | None:
        """Return what is told of the tool's steps, None if its calls need leave or may have an effect of their own."""
        known = self._known.get(tool.name)
        if known is None or known[0] is not tool:
            is_free = (
                tool.effect_class in (EffectClass.READ_ONLY, EffectClass.TRANSACTIONAL)
                and not tool.needs_approval
                and not tool.restartable
                and self._services.approval_policy is None
            )
            told = ToldPayload(tool_name=tool.name, effect_class=tool.effect_class) if is_free else None
            known = self._known[tool.name] = tool, told
        return known[1]

    def _is_next(self, entry: CacheEntry, transaction: Transaction, request: StepRequest) -> bool:
        """Whether a step is the next one of a transaction of which nothing is open, and was not sent before."""
        record = transaction.record
        return (
            record.status is TransactionStatus.ACTIVE
            and record.next_step_id == request.step_id
            and request.step_id <= self._services.limits.steps_per_transaction
            and request.generation in (None, record.generation)
            and sees(request.principal, record.principal)
            and not record.run_id
            and record.open_group is None
            and record.pending_rewind is None
            and record.crash_policy is CrashPolicy.RESUME
            and not record.owner
            and not record.has_sub_steps
            and request.call.report is None
            and request.call.request_id not in transaction.request_ids
            and request.step_id not in transaction.steps
            and not transaction.approvals
            and not transaction.owes_late
            and transaction.write_failure is None
            and (transaction.last_write is None or transaction.last_write.done())
            and entry.left_open is None
            and not self._late_tools.given_up(record.transaction_id)
            and self._may_store(record.principal)
        )

    def _may_store(self, owner: str) -> bool:
        try:
            self._services.check_stored(owner)
        except LimitExceeded:
            return False
        return True

    def _context(
        self, transaction: Transaction, request: StepRequest, tool: ToolDescription, attempt: int
    ) -> StepContext:
        services = self._services
        record = transaction.record
        timeout_us = request.call.timeout_us
        if timeout_us is None:
            timeout_us = tool.timeout_us if tool.timeout_us is not None else record.step_timeout_us
        seconds = services.settings.step_timeout_seconds if timeout_us is None else timeout_us / _MICROSECONDS
        return StepContext(
            transaction_id=record.transaction_id,
            owner=record.principal,
            agent_id=record.agent_id,
            step_id=request.step_id,
            attempt=attempt,
            group_first=request.step_id,
            idempotency_key="",
            deadline=services.clock.monotonic() + seconds,
            fence=record.revision,
            metadata=request.call.metadata,
            store=services.store,
            clock=services.clock,
            ids=services.ids,
            limits=services.limits,
            register_undo=_refuse_undo,
            update_undo=_refuse_undo_update,
            make_sub_step=_refuse_sub_step,
            check_begin=_begin_freely,
            validates_scans=record.isolation is Isolation.SERIALIZABLE,
        )


def _begin_freely() -> None:
    """What acts on nothing outside needs no lease to begin, and all that could refuse the call was looked at."""


async def _refuse_undo(undo_name: str, arguments: str, key: str) -> NoReturn:
    raise RuntimeError("a prompt tool registers no undo")


async def _refuse_undo_update(undo_name: str, arguments: str) -> NoReturn:
    raise RuntimeError("a prompt tool registers no undo")


async def _refuse_sub_step(call: SubStepCall) -> NoReturn:
    raise RuntimeError("a prompt tool makes no sub-steps")
