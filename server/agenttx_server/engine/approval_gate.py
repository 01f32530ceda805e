"""Whether a call may run now: freely, under an approval that was given for exactly it, or not yet.

Asked each time that a step is sent, with its arguments resolved anew. Anything but the very call that a
person saw asks again.
"""

from __future__ import annotations

from agenttx_server.engine import approvals, failure_text, json_values
from agenttx_server.engine.failure_text import StepFailure
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.ports import ApprovalPolicy, ArgumentsRefused, Clock, ToolRunner
from agenttx_server.engine.records import ApprovalRecord, ApprovalState, ToolDescription
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows

__all__ = ["ApprovalGate", "CallRefused", "GatedCall", "Passage"]

_ALWAYS = "this tool always needs approval"
_CHANGED = "the call is not the one that was shown"


@dataclass(frozen=True, slots=True)
class GatedCall:
    """A call as it would run: ``arguments`` resolved, and as canonical ``text``."""

    step_id: int
    attempt: int
    tool: ToolDescription
    arguments: json_values.JsonValue
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """What was found. ``waits_for`` is the open question, ``under`` the approval that the call uses as it begins.

    ``is_new`` is that the question was not asked before; ``withdrawn`` was given or asked for another call.
    """

    waits_for: ApprovalRecord | None = None
    under: ApprovalRecord | None = None
    is_new: bool = False
    withdrawn: ApprovalRecord | None = None
    failure: StepFailure | None = None


_FREE = Passage()


class CallRefused(Exception):
    """A call did not pass just before it would have run; its tool was not reached."""

    def __init__(self, failure: StepFailure) -> None:
        super().__init__(failure.hint.text)
        self.failure = failure


class ApprovalGate:
    """Lets calls pass, or has them wait for a person."""

    def __init__(self, services: EngineServices) -> None:
        self._policy: ApprovalPolicy | None = services.approval_policy
        self._tools: ToolRunner = services.tools
        self._clock: Clock = services.clock

    def consider(self, transaction: Transaction, call: GatedCall) -> Passage:
        """Judge a call. What it withdraws or asks is taken into the aggregate and has to be written."""
        tool = call.tool
        if not tool.needs_approval and self._policy is None and not transaction.approvals:
            return _FREE
        known = transaction.live_approval(call.step_id)
        if known is not None and (known.tool_name, known.arguments) == (tool.name, call.text):
            return self._under(known, tool)
        why = self._why(call)
        failure = self._refused(call) if why else None
        if not why or failure is not None:
            return Passage(withdrawn=known, failure=failure)
        asked = approvals.ask(
            transaction,
            call.step_id,
            call.attempt,
            tool.name,
            tool.effect_class,
            call.text,
            why,
            self._clock.now(),
        )
        return Passage(waits_for=asked, is_new=True, withdrawn=known)

    def needs_approval(self, tool: ToolDescription, arguments: json_values.JsonValue) -> bool:
        """Whether a person has to be asked about a call; nothing is asked."""
        return bool(self._why(GatedCall(0, 0, tool, arguments, "")))

    def record(self, transaction: Transaction, call_attempt: int, passage: Passage, rows: Rows) -> None:
        """Add what a passage changed to the write that begins the step, or that says that it waits."""
        now = self._clock.now()
        if passage.withdrawn is not None:
            approvals.withdraw(transaction, passage.withdrawn, _CHANGED, rows, now)
        if passage.under is not None:
            approvals.use(transaction, passage.under, call_attempt, rows, now)
        if passage.waits_for is not None and passage.is_new:
            approvals.asked(passage.waits_for, rows)

    def _under(self, known: ApprovalRecord, tool: ToolDescription) -> Passage:
        if known.effect_class is not tool.effect_class:
            # What was shown was a call of another kind: it could be undone, say, and now can't.
            return Passage(withdrawn=known, failure=failure_text.tool_replaced(tool.name))
        if known.state is ApprovalState.APPROVED:
            return Passage(under=known)
        return Passage(waits_for=known)

    def _why(self, call: GatedCall) -> str:
        if call.tool.needs_approval:
            return _ALWAYS
        return self._policy.why(call.tool.name, call.arguments) if self._policy is not None else ""

    def _refused(self, call: GatedCall) -> StepFailure | None:
        """Whether the tool would refuse the arguments anyway: nobody needs to be asked then."""
        try:
            self._tools.check_arguments(call.tool.name, call.arguments)
        except ArgumentsRefused as refused:
            return failure_text.from_tool_failure(refused)
        return None
