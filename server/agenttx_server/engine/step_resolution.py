"""ResolveStep: what a person says of a step in doubt, and what follows from it. The caller holds the lock."""

from __future__ import annotations

import orjson

from agenttx_server.engine import failure_text, json_values, refusals
from agenttx_server.engine.attempt_history import attempts_of_step, live_attempt
from agenttx_server.engine.errors import (
    FieldViolation,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    RunsElsewhere,
)
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.group_settlement import GroupSettlement
from agenttx_server.engine.held_run import held_status
from agenttx_server.engine.limits import utf8_size
from agenttx_server.engine.ports import StaleRevision
from agenttx_server.engine.recorded_answers import fingerprint, record_response, same_request
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    EventType,
    RecordedResponse,
    StepResolution,
    TransactionStatus,
)
from agenttx_server.engine.requests import ResolveStepAnswer, ResolveStepRequest
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import decode_answer
from agenttx_server.engine.step_execution import StepExecution
from agenttx_server.engine.step_recovery import member_from
from agenttx_server.engine.sub_steps import SubSteps
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["StepResolving"]

_METHOD = "ResolveStep"


class StepResolving:
    """Settles steps that are in doubt."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        steps: StepExecution,
        settlement: GroupSettlement,
        sub_steps: SubSteps,
    ) -> None:
        self._sub_steps = sub_steps
        self._services = services
        self._writer = writer
        self._steps = steps
        self._settlement = settlement

    async def resolve(
        self, entry: CacheEntry, transaction: Transaction, request: ResolveStepRequest
    ) -> ResolveStepAnswer:
        """Settle a step, or answer as recorded."""
        identity = _identity(request)
        recorded = await self._recorded(transaction, request, identity)
        if recorded is not None:
            return await self._answer_again(transaction, recorded)
        if request.sub_step:
            return await self._resolve_sub_step(entry, transaction, request, identity)
        attempts = await self._check(transaction, request)
        first, size = transaction.record.open_group or (request.step_id, 1)
        doubtful = attempts.pop(request.step_id)
        resolved = self._resolved(doubtful, request)
        rows = Rows()
        rows.event(
            EventType.STEP_RESOLVED,
            doubtful.step_id,
            doubtful.attempt,
            resolution=request.resolution,
        )
        self._record(transaction, request, identity, doubtful, rows)
        if transaction.record.held is not None:
            return await self._leave_to_run(transaction, resolved, rows)
        transaction.finish_attempt(resolved)
        members = []
        if request.resolution is StepResolution.RETRY:
            # Durable before the tool is called once more: a crash in it is a doubt again.
            rows.attempts.append(resolved)
            await self._writer.write(transaction, rows, status=TransactionStatus.EXECUTING)
            rows = Rows()
            members = [member_from(resolved, same_attempt=True)]
        else:
            self._tell(resolved, rows)
            attempts[resolved.step_id] = resolved
        run = self._steps.new_run(transaction, members, list(attempts.values()), size)
        await self._steps.carry_out(entry, run)
        if not run.is_whole:
            if not members:
                rows.attempts.append(resolved)
            await self._steps.guarded(run, self._settlement.leave_open(transaction, run, rows))
            return self._answer(transaction)
        answers = await self._steps.guarded(run, self._settlement.settle(transaction, run, rows))
        if transaction.record.status in (TransactionStatus.IN_DOUBT, TransactionStatus.AWAITING_APPROVAL):
            return self._answer(transaction)
        return replace(self._answer(transaction), result=answers[request.step_id - first])

    async def _leave_to_run(
        self, transaction: Transaction, resolved: AttemptRecord, rows: Rows
    ) -> ResolveStepAnswer:
        """Settle a member of a held group; its run goes on, and makes a call that may be repeated again."""
        if resolved.state is AttemptState.EXECUTING:
            now = self._services.clock.now()
            rows.attempts.append(replace(resolved, state=AttemptState.SUPERSEDED, ended_at=now))
            transaction.supersede(resolved.step_id)
        else:
            self._tell(resolved, rows)
            rows.attempts.append(resolved)
            transaction.finish_attempt(resolved)
        await self._writer.write(transaction, rows, status=held_status(transaction))
        return self._answer(transaction)

    # --- sub-steps ----------------------------------------------------------------------

    async def _resolve_sub_step(
        self, entry: CacheEntry, transaction: Transaction, request: ResolveStepRequest, identity: str
    ) -> ResolveStepAnswer:
        """Settle a sub-step and, if nothing else of its step is in doubt, go on with that."""
        attempts = await self._check_sub_step(transaction, request)
        transaction_id = transaction.record.transaction_id
        stored = await self._services.store.load_journal(transaction_id, request.step_id)
        doubtful = next((item for item in stored.sub_steps if item.sub_step == request.sub_step), None)
        if doubtful is None or doubtful.state is not AttemptState.IN_DOUBT:
            raise StaleRevision(f"step {request.step_id}.{request.sub_step} is not in doubt by now")
        resolved = self._resolved(doubtful, request)
        rows = Rows(sub_steps=[resolved])
        at = (resolved.step_id, resolved.attempt, resolved.sub_step)
        rows.event(EventType.STEP_RESOLVED, *at, resolution=request.resolution)
        if resolved.state is not AttemptState.EXECUTING:
            self._tell(resolved, rows)
        step = attempts.pop(request.step_id)
        self._record(transaction, request, identity, step, rows)
        transaction.note_sub_step(resolved)
        others = [live.state for live in transaction.sub_steps[request.step_id].values()]
        stays = AttemptState.IN_DOUBT in others or step.effect_class is EffectClass.IRREVERSIBLE
        is_held = transaction.record.held is not None
        if not stays:
            going_on = AttemptState.SUPERSEDED if is_held else AttemptState.EXECUTING
            step = replace(step, state=going_on, hint=None, raw_error="", ended_at=None)
            rows.attempts.append(step)
            if is_held:
                transaction.supersede(step.step_id)
            else:
                transaction.finish_attempt(step)
        status = TransactionStatus.ACTIVE
        if transaction.in_doubt_steps():
            status = TransactionStatus.IN_DOUBT
        elif transaction.executing_steps():
            status = TransactionStatus.EXECUTING
        await self._writer.write(transaction, rows, status=status)
        if resolved.state is AttemptState.FAILED:
            await self._sub_steps.undo(transaction, resolved)
        if not stays and not is_held:
            await self._go_on(entry, transaction, step, list(attempts.values()))
        return self._answer(transaction)

    async def _go_on(
        self,
        entry: CacheEntry,
        transaction: Transaction,
        step: AttemptRecord,
        others: list[AttemptRecord],
    ) -> None:
        """Start a step's code again, whose calls are all settled."""
        _, size = transaction.record.open_group or (step.step_id, 1)
        repeated = step.effect_class is not EffectClass.COMPENSATABLE
        if not repeated:  # what it did itself is undone; what its calls did stands
            await self._sub_steps.undo(transaction, step)
        member = member_from(step, same_attempt=repeated)
        run = self._steps.new_run(transaction, [member], others, size)
        await self._steps.carry_out(entry, run)
        if run.is_whole:
            await self._steps.guarded(run, self._settlement.settle(transaction, run))
        else:
            await self._steps.guarded(run, self._settlement.leave_open(transaction, run, Rows()))

    async def _check_sub_step(
        self, transaction: Transaction, request: ResolveStepRequest
    ) -> dict[int, AttemptRecord]:
        record = transaction.record
        refusals.check_not_ended(record)
        refusals.check_generation(record, request.generation)
        live = transaction.sub_steps.get(request.step_id, {}).get(request.sub_step)
        place = {"step_id": str(request.step_id), "sub_step": str(request.sub_step)}
        if live is None or request.step_id not in transaction.steps:
            raise NotFound(
                f"step {request.step_id}.{request.sub_step} is not a live step of the transaction",
                reason="STEP_NOT_FOUND",
                metadata=place,
            )
        if live.state is not AttemptState.IN_DOUBT:
            raise PreconditionFailed(
                f"step {request.step_id}.{request.sub_step} ({live.tool_name}) is not in doubt: it is {live.state}",
                reason="STEP_NOT_IN_DOUBT",
                metadata={**place, "state": live.state},
            )
        return await self._group_attempts(transaction, request.step_id)

    # --- parts --------------------------------------------------------------------------

    def _record(
        self,
        transaction: Transaction,
        request: ResolveStepRequest,
        identity: str,
        attempt: AttemptRecord,
        rows: Rows,
    ) -> None:
        """Record the answer under the request_id; of a sub-step it never has a result."""
        if not request.request_id:
            return
        transaction.request_ids.add(request.request_id)
        told = {"step_id": attempt.step_id, "attempt": attempt.attempt, "sub_step": request.sub_step}
        transaction_id = transaction.record.transaction_id
        rows.responses.append(record_response(transaction_id, request.request_id, _METHOD, identity, told))

    async def _recorded(
        self, transaction: Transaction, request: ResolveStepRequest, identity: str
    ) -> RecordedResponse | None:
        request_id = request.request_id
        if not request_id or request_id not in transaction.request_ids:
            return None
        recorded = await self._services.store.find_response(transaction.record.transaction_id, request_id)
        return same_request(recorded, request_id, _METHOD, identity)

    async def _answer_again(self, transaction: Transaction, recorded: RecordedResponse) -> ResolveStepAnswer:
        told = orjson.loads(recorded.response)
        if told.get("sub_step"):
            return self._answer(transaction)
        attempts = await attempts_of_step(
            self._services.store, transaction.record.transaction_id, told["step_id"]
        )
        attempt = next(item for item in attempts if item.attempt == told["attempt"])
        if attempt.response is None:
            return self._answer(transaction)
        answer = decode_answer(attempt.response, attempt.output, attempt.edges)
        return replace(self._answer(transaction), result=replace(answer, replayed=True))

    async def _check(self, transaction: Transaction, request: ResolveStepRequest) -> dict[int, AttemptRecord]:
        """Refuse what can't be resolved; return the attempts of the open group by step."""
        record = transaction.record
        refusals.check_not_ended(record)
        refusals.check_generation(record, request.generation)
        # A sibling whose undo is held is neither undone nor ended: the group can't be settled without it.
        refusals.check_not_held(transaction)
        if request.step_id not in transaction.steps:
            raise NotFound(
                f"step {request.step_id} is not a live step of the transaction",
                reason="STEP_NOT_FOUND",
                metadata={"step_id": str(request.step_id)},
            )
        if request.step_id not in transaction.in_doubt_steps():
            raise refusals.step_not_in_doubt(request.step_id, transaction.steps[request.step_id])
        for sub_step, live in transaction.sub_steps.get(request.step_id, {}).items():
            if live.state is AttemptState.IN_DOUBT:
                raise refusals.sub_step_in_doubt(request.step_id, sub_step, live.tool_name)
        return await self._group_attempts(transaction, request.step_id)

    async def _group_attempts(self, transaction: Transaction, step_id: int) -> dict[int, AttemptRecord]:
        """Return the live attempts of the open group, by step. Raises RunsElsewhere while one of them runs."""
        record = transaction.record
        if transaction.executing_steps():
            raise RunsElsewhere  # to write now would take the transaction from the server that runs them
        first, size = record.open_group or (step_id, 1)
        found = {}
        for step_id in range(first, first + size):
            live = transaction.steps.get(step_id)
            if live is not None:
                found[step_id] = await live_attempt(
                    self._services.store, record.transaction_id, step_id, live
                )
        return found

    def _resolved(self, attempt: AttemptRecord, request: ResolveStepRequest) -> AttemptRecord:
        now = self._services.clock.now()
        if request.resolution is StepResolution.SUCCEEDED:
            return replace(
                attempt,
                state=AttemptState.COMPLETED,
                output=self._output(request.output_json),
                hint=None,
                raw_error="",
                ended_at=now,
            )
        if request.resolution is StepResolution.FAILED:
            failure = failure_text.reported(request.error, self._services.clean)
            return replace(
                attempt,
                state=AttemptState.FAILED,
                tries=max(attempt.tries, 1),
                hint=failure.hint,
                raw_error=failure.raw_error,
                ended_at=now,
            )
        return replace(attempt, state=AttemptState.EXECUTING, hint=None, raw_error="", ended_at=None)

    def _output(self, text: str) -> str:
        limit = self._services.limits.output_bytes
        if utf8_size(text) > limit:
            raise InvalidRequest(
                (FieldViolation("output_json", f"is larger than the limit of {limit} bytes"),)
            )
        try:
            return json_values.canonical(json_values.parse(text or "null"))
        except json_values.ValueRefused as refused:
            raise InvalidRequest((FieldViolation("output_json", f"is refused at {refused}"),)) from None

    def _tell(self, resolved: AttemptRecord, rows: Rows) -> None:
        if resolved.state is AttemptState.COMPLETED:
            rows.event(
                EventType.STEP_COMPLETED,
                resolved.step_id,
                resolved.attempt,
                resolved.sub_step,
                tool_name=resolved.tool_name,
                effect_class=resolved.effect_class,
            )
            return
        hint = resolved.hint
        rows.event(
            EventType.STEP_FAILED,
            resolved.step_id,
            resolved.attempt,
            resolved.sub_step,
            tool_name=resolved.tool_name,
            category=hint.category if hint else "",
            hint=hint.text if hint else "",
            error_keys=hint.keys if hint else (),
        )

    def _answer(self, transaction: Transaction) -> ResolveStepAnswer:
        record = transaction.record
        return ResolveStepAnswer(None, record.next_step_id, record.generation)


def _identity(request: ResolveStepRequest) -> str:
    return fingerprint(
        _METHOD,
        str(request.step_id),
        str(request.sub_step),
        request.resolution,
        request.output_json,
        request.error,
    )
