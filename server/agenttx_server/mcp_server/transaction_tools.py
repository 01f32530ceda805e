"""What each tool does, by way of the SDK. A method a tool; each returns the text and the fields of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agenttx import (
    AsyncClient,
    AsyncTransaction,
    StepAttempt,
    StepOutcome,
    StepStatus,
    TransactionInfo,
    TransactionStatus,
)
from agenttx.errors import StepFailed, StepInDoubt, TransactionEnded
from agenttx_server.mcp_server import answers, next_calls, requests
from agenttx_server.mcp_server.explanation import explained, newest_failure
from agenttx_server.mcp_server.refusals import refusal, refused
from agenttx_server.mcp_server.seen_answers import SeenAnswers, call_identity
from agenttx_server.mcp_server.step_answers import SentStep, kept, step_answer, step_text
from agenttx_server.mcp_server.tool_catalogue import listed_tools, listing_text
from agenttx_server.mcp_server.transaction_views import (
    next_of,
    step_shown,
    transaction_shown,
    transaction_text,
)
from agenttx_server.mcp_server.wording import refusal_text, with_rest

__all__ = ["Reply", "TransactionTools"]

NEWEST_STEPS = 50
MOST_LISTED = 100
DEFAULT_AGENT = "mcp-client"


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``handed_over`` is called once the caller has it, which a cancelled call never does."""

    text: str
    answer: answers.Answer
    is_error: bool = False
    handed_over: Callable[[], None] = _nothing


class TransactionTools:
    """The tools, for all callers of one process. ``client`` is connected by its first call."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._seen = SeenAnswers()

    # --- beginning ------------------------------------------------------------------------

    async def begin_transaction(self, request: requests.BeginTransaction, caller: str) -> Reply:
        """Open a transaction. Every call opens another: nothing tells a repeated one from that of another session."""
        transaction = self._client.transaction(
            agent_id=request.agent_id or caller or DEFAULT_AGENT,
            metadata={"task": request.task} if request.task else None,
        )
        await transaction.begin()
        transaction_id = transaction.transaction_id
        answer = answers.Begun(
            transaction_id=transaction_id,
            next_step=transaction.next_step_id,
            next=[
                next_calls.run(transaction_id, transaction.next_step_id, "for the first tool call"),
                next_calls.list_tools("to see which tools there are"),
            ],
        )
        text = (
            f"Transaction {transaction_id} is open. Nothing of it is visible to others until it is committed."
        )
        return Reply(
            f"{text}\n{next_calls.sentence(answer.next)}",
            answer,
            handed_over=lambda: self._seen.told(transaction_id, transaction.generation),
        )

    # --- running --------------------------------------------------------------------------

    async def run_step(self, request: requests.RunStep) -> Reply:
        """Run a step, or give the answer again if the call was made before."""
        async with self._seen.turn(request.transaction_id):
            return await self._run_step(request)

    async def _run_step(self, request: requests.RunStep) -> Reply:
        sent = SentStep(request.transaction_id, request.step, request.tool, request.arguments)
        transaction = self._client.resume(sent.transaction_id)
        info = await transaction.refresh()
        earlier = await self._earlier_call(sent, info)
        if earlier is None and (lost := self._not_told(info, sent.step)):
            return lost
        # In any other status the server has a better reason to refuse it than its number.
        if earlier is None and info.status is TransactionStatus.ACTIVE and sent.step != info.next_step_id:
            return self._other_position(sent, info)
        request_id = earlier or call_identity(
            sent.transaction_id, info.generation, sent.step, sent.tool, sent.arguments
        )
        try:
            outcome = await transaction.call(
                sent.tool,
                sent.arguments,
                step_timeout=request.timeout_seconds,
                raw_context=request.note,
                request_id=request_id,
                step_id=sent.step,
            )
        except StepFailed as failed:
            outcome = failed.outcome
        except StepInDoubt as doubt:
            if doubt.outcome is None:
                raise
            outcome = doubt.outcome
        return await self._stepped(sent, outcome, transaction)

    async def _earlier_call(self, sent: SentStep, info: TransactionInfo) -> str | None:
        """Return the request_id of this very call, if it was made before; None if it is a new one.

        Looked for in the generation that the caller was last told of, and where that is not known in the newest two:
        one that failed has moved the transaction to the next.
        """
        told = self._seen.generation(sent.transaction_id)
        if told == info.generation and sent.step == info.next_step_id and not info.running_steps:
            return None
        generations = (told,) if told is not None else (info.generation, info.generation - 1)
        wanted = {
            call_identity(sent.transaction_id, generation, sent.step, sent.tool, sent.arguments)
            for generation in generations
        }
        async for attempt in self._client.list_steps(sent.transaction_id, step_id=sent.step):
            was_taken_back = attempt.rewound and not attempt.hint
            if attempt.request_id in wanted and not attempt.sub_step and not was_taken_back:
                return attempt.request_id
        return None

    def _not_told(self, info: TransactionInfo, step: int) -> Reply | None:
        """Refuse to run anything where the transaction went back and the caller does not know."""
        told = self._seen.generation(info.transaction_id)
        if told is None or told == info.generation or info.status.is_terminal:
            return None
        transaction_id = info.transaction_id
        answer = refused(
            "moved",
            f"Step {step} was not run: since the last answer the transaction went back, and its next step is "
            f"{info.next_step_id}",
            "See why, then go on from there",
            answers.NextCall(
                tool="explain_failure", arguments={"transaction_id": transaction_id}, why="to see why"
            ),
            next_calls.get(transaction_id, "to see where it stands"),
        )
        return _refusal(answer, lambda: self._seen.told(transaction_id, info.generation))

    def _other_position(self, sent: SentStep, info: TransactionInfo) -> Reply:
        transaction_id = sent.transaction_id
        if sent.step < info.next_step_id:
            problem = f"Step {sent.step} has run already, with another tool or other arguments"
            calls = [
                next_calls.run(
                    transaction_id, info.next_step_id, "for a new step", sent.tool, sent.arguments
                ),
                next_calls.rewind(transaction_id, sent.step, "to undo it and all after it, and run it anew"),
            ]
        else:
            problem = f"Step {sent.step} can't run yet"
            calls = [
                next_calls.run(transaction_id, info.next_step_id, "to go on", sent.tool, sent.arguments),
                next_calls.get(transaction_id, "to see which steps are done"),
            ]
        answer = refused(
            "wrong_step", f"{problem}; the next step is {info.next_step_id}", "Nothing was run", *calls
        )
        return _refusal(answer, lambda: self._seen.told(transaction_id, info.generation))

    async def _stepped(self, sent: SentStep, outcome: StepOutcome, transaction: AsyncTransaction) -> Reply:
        target = None
        if outcome.status is StepStatus.ROLLBACK_TRIGGERED and outcome.next_step_id != sent.step:
            target = await self._newest_attempt(sent.transaction_id, outcome.next_step_id)
        answer = step_answer(sent, outcome, target)
        return Reply(
            step_text(sent, answer, outcome),
            answer,
            is_error=outcome.status not in (StepStatus.SUCCESS, StepStatus.AWAITING_APPROVAL),
            handed_over=lambda: self._seen.told(sent.transaction_id, transaction.generation),
        )

    async def _newest_attempt(self, transaction_id: str, step: int) -> StepAttempt | None:
        newest = None
        async for attempt in self._client.list_steps(transaction_id, step_id=step):
            if not attempt.sub_step:
                newest = attempt
        return newest

    # --- going back, and ending ---------------------------------------------------------------

    async def rewind(self, request: requests.Rewind) -> Reply:
        """Undo a step and all after it, or say what that would undo."""
        transaction_id = request.transaction_id
        async with self._seen.turn(transaction_id):
            transaction = self._client.resume(transaction_id)
            before = await transaction.refresh()
            result = await transaction.rewind(
                request.to_step,
                reason=request.reason,
                dry_run=request.dry_run,
                accept_irreversible=request.accept_irreversible,
            )
        plan = result.plan
        steps = (
            sorted({each.step_id for each in plan.steps})
            if plan is not None
            else list(range(request.to_step, before.next_step_id))
        )
        if request.dry_run:
            calls = [
                next_calls.rewind(transaction_id, request.to_step, "to do it"),
                next_calls.run(transaction_id, before.next_step_id, "to go on as it is"),
            ]
            text = f"Nothing was changed. Going back to step {request.to_step} would undo "
            text += f"{len(steps)} steps" if len(steps) != 1 else f"step {steps[0]}"
            if plan is not None and plan.undo_actions:
                text += ", running " + ", ".join(each.action for each in plan.undo_actions[:20])
            text += "."
        elif result.rollback_incomplete:
            calls = [
                next_calls.get(transaction_id, "to see which undo action failed"),
                next_calls.rewind(transaction_id, request.to_step, "to try again, once its cause is gone"),
            ]
            text = f"The transaction is going back to step {request.to_step}, but an undo action failed; nothing goes on until it is settled."
        else:
            calls = [next_calls.run(transaction_id, result.next_step_id, "to go on")]
            text = f"Steps from {request.to_step} on were undone. The next step is {result.next_step_id}."
        answer = answers.Rewound(
            transaction_id=transaction_id,
            dry_run=request.dry_run,
            steps_undone=steps[:MOST_LISTED],
            undo_actions=[each.action for each in plan.undo_actions[:MOST_LISTED]] if plan else [],
            compensations_run=result.compensations_run,
            kept_effects=kept(result.kept_effects),
            failed_undo=list(result.compensation_errors),
            rollback_incomplete=result.rollback_incomplete,
            next_step=result.next_step_id,
            next=calls,
        )
        return Reply(
            with_rest(text, answer.kept_effects, answer.failed_undo, calls),
            answer,
            is_error=result.rollback_incomplete,
            handed_over=lambda: self._seen.told(transaction_id, transaction.generation),
        )

    async def commit_transaction(self, request: requests.CommitTransaction) -> Reply:
        """Publish the transaction; one that is committed already is answered so."""
        transaction_id = request.transaction_id
        async with self._seen.turn(transaction_id):
            transaction = self._client.resume(transaction_id)
            info = await transaction.refresh()
            if info.status is TransactionStatus.COMMITTED:
                return _committed_before(info)
            if info.status.is_terminal:
                return _ended(info)
            if lost := self._not_told(info, info.next_step_id):
                return lost
            if request.steps is not None and request.steps != info.steps_completed:
                return self._other_count(request.steps, info)
            try:
                result = await transaction.commit()
            except TransactionEnded as ended:
                if ended.status != TransactionStatus.COMMITTED:
                    raise
                return _committed_before(info)
        answer = answers.Committed(
            transaction_id=transaction_id,
            steps_committed=result.steps_committed,
            effects_dispatched=result.effects_dispatched,
            effects_pending=result.effects_pending,
            dispatch_errors=list(result.dispatch_errors),
        )
        text = f"Transaction {transaction_id} is committed: {result.steps_committed} steps, for good."
        if result.effects_pending:
            text += f" {result.effects_pending} staged effects are still being delivered, which needs nobody."
        return Reply(text, answer)

    def _other_count(self, expected: int, info: TransactionInfo) -> Reply:
        transaction_id = info.transaction_id
        answer = refused(
            "other_steps",
            f"Not committed: {info.steps_completed} steps are done, not {expected}; the next one is {info.next_step_id}",
            "Run what is missing. If what is done is all there is to do, commit with that number",
            next_calls.run(transaction_id, info.next_step_id, "for what is missing"),
            next_calls.commit(transaction_id, info.steps_completed, "if that is all"),
            next_calls.get(transaction_id, "to see what is done"),
        )
        return _refusal(answer, lambda: self._seen.told(transaction_id, info.generation))

    async def rollback_transaction(self, request: requests.RollbackTransaction) -> Reply:
        """Undo everything and end the transaction; one that is rolled back already is answered so."""
        transaction_id = request.transaction_id
        async with self._seen.turn(transaction_id):
            transaction = self._client.resume(transaction_id)
            info = await transaction.refresh()
            if info.status in (TransactionStatus.ROLLED_BACK, TransactionStatus.FAILED):
                return _rolled_back_before(info)
            if info.status.is_terminal:
                return _ended(info)
            result = await transaction.rollback(
                request.reason, accept_irreversible=request.accept_irreversible
            )
        calls = (
            [
                next_calls.get(transaction_id, "to see which undo action failed"),
                next_calls.rollback(transaction_id, "to try again, once its cause is gone"),
            ]
            if result.rollback_incomplete
            else [next_calls.begin("if there is anything else to do")]
        )
        answer = answers.RolledBack(
            transaction_id=transaction_id,
            compensations_run=result.compensations_run,
            kept_effects=kept(result.kept_effects),
            failed_undo=list(result.compensation_errors),
            rollback_incomplete=result.rollback_incomplete,
            next=calls,
        )
        text = (
            f"Transaction {transaction_id} is being rolled back, but an undo action failed; a person may have to help: "
            f"`agenttx compensations list --transaction {transaction_id}`."
            if result.rollback_incomplete
            else f"Transaction {transaction_id} is rolled back: everything was undone, and it has ended."
        )
        return Reply(
            with_rest(text, answer.kept_effects, answer.failed_undo, calls),
            answer,
            is_error=result.rollback_incomplete,
        )

    # --- looking ------------------------------------------------------------------------------

    async def get_transaction(self, request: requests.GetTransaction) -> Reply:
        """Say where a transaction stands, and show one of its steps."""
        transaction_id = request.transaction_id
        info = await self._client.get_transaction(transaction_id)
        first = max(info.next_step_id or info.furthest_step + 1, 1) - NEWEST_STEPS
        graph = await self._client.dependency_graph(transaction_id, first_step=max(first, 1))
        steps = [
            answers.StepShown(step=node.step_id, tool=node.tool_name, state=str(node.state))
            for node in graph.nodes
            if not node.sub_step
        ][-NEWEST_STEPS:]
        if request.step is not None:
            attempt = await self._newest_attempt(transaction_id, request.step)
            if attempt is None:
                return _refusal(
                    refused(
                        "no_such_step",
                        f"Step {request.step} was never run",
                        "Ask for one that is listed",
                        next_calls.get(transaction_id, "to see the steps"),
                    )
                )
            steps = [each for each in steps if each.step != request.step]
            steps.append(step_shown(attempt, request.path))
        answer = transaction_shown(info, steps)
        return Reply(
            transaction_text(answer, request.step),
            answer,
            handed_over=lambda: self._seen.told(transaction_id, info.generation),
        )

    async def list_tools(self, request: requests.ListTools) -> Reply:
        """List what run_step can call."""
        answer = await listed_tools(self._client, request.search, request.after)
        return Reply(listing_text(answer, request.search), answer)

    async def explain_failure(self, request: requests.ExplainFailure) -> Reply:
        """Explain the newest failure, of a step or of all."""
        transaction_id = request.transaction_id
        info = await self._client.get_transaction(transaction_id)
        attempt = await newest_failure(self._client, transaction_id, request.step or 0)
        if attempt is None:
            of_step = f" of step {request.step}" if request.step else ""
            answer = refused(
                "no_failure",
                f"No failure{of_step} is known in this transaction",
                "Go on",
                next_calls.get(transaction_id, "to see where it stands"),
            )
            return _refusal(answer)
        text, explanation = explained(info, attempt, next_of(info))
        return Reply(text, explanation, handed_over=lambda: self._seen.told(transaction_id, info.generation))


def _refusal(answer: answers.Refused, handed_over: Callable[[], None] = _nothing) -> Reply:
    return Reply(refusal_text(answer), answer, is_error=True, handed_over=handed_over)


def _ended(info: TransactionInfo) -> Reply:
    error = TransactionEnded("", metadata={"status": str(info.status), "abort_reason": info.abort_reason})
    return _refusal(refusal(error, info.transaction_id))


def _committed_before(info: TransactionInfo) -> Reply:
    answer = answers.Committed(
        transaction_id=info.transaction_id,
        steps_committed=info.steps_completed,
        effects_dispatched=0,
        effects_pending=info.pending_effects,
        dispatch_errors=[],
        repeated=True,
    )
    return Reply(f"Transaction {info.transaction_id} is committed; it was before this call.", answer)


def _rolled_back_before(info: TransactionInfo) -> Reply:
    answer = answers.RolledBack(
        transaction_id=info.transaction_id,
        compensations_run=0,
        kept_effects=kept(info.kept_effects),
        failed_undo=[],
        rollback_incomplete=False,
        repeated=True,
    )
    text = f"Transaction {info.transaction_id} was undone and has ended; it had before this call."
    return Reply(with_rest(text, answer.kept_effects, [], []), answer)
