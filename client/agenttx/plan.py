"""Plans and the loop that runs them: after every rollback on at the step that the server says.

A plan is one of

- a list: its items are the steps 1, 2, …; an item is a `Step`, a mapping `{"tool": …, "arguments": {…}}`, or a function
  that is given the run's state and returns one of these, so that it can answer a hint with a better argument; a list
  inside the list is a group, whose members run side by side and take a number each;
- a function `next_action(state)`, asked for every next step, a group, or `Done()`: an agent's own loop;
- a generator that yields the same and is sent the state after each: `state = yield Step(…)`.

With the asynchronous client the functions may be coroutines and the generator an asynchronous one.

Example:
    def choose_customer(state):
        return Step("record.get", {"table": "customers", "id": 2 if "customer" in state.hint else 1})

    report = client.run(
        [choose_customer, lambda state: Step("kv.put", {"key": "owner", "value": state.ref(1, "id")})],
        agent_id="billing",
    )
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from agenttx.errors import CommitConflict
from agenttx.records import CommitResult, StepOutcome, StepStatus
from agenttx.references import Reference, parse_path
from agenttx.step import Step
from agenttx.transaction_cursor import raise_unless_succeeded

if TYPE_CHECKING:
    from agenttx.transaction import Transaction

__all__ = ["Action", "Done", "Plan", "PlanItem", "RunProgress", "RunReport", "RunState", "run_plan"]


@dataclass(frozen=True, slots=True)
class Done:
    """Ends a run: commit. `result` comes back in the report."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class RunState:
    """What a plan's function is told before it gives the next step.

    Attributes:
        transaction_id: The transaction.
        step_id: The step that is next.
        tries: How often this run has sent this step before.
        constraints: The hints collected so far, oldest first: what to keep to.
        hint: The hint of the last failure; empty if none failed.
        last_failure: The last failure's answer in full; None if none failed.
        context_reset: Whether everything was just undone and the agent should clear its own context.
        outcomes: The outcomes that stand, by step.
    """

    transaction_id: str
    step_id: int
    tries: int = 0
    constraints: tuple[str, ...] = ()
    hint: str = ""
    last_failure: StepOutcome | None = None
    context_reset: bool = False
    outcomes: Mapping[int, StepOutcome] = field(default_factory=dict)

    def ref(self, step_id: int, *path: str | int) -> Reference:
        """Return a reference to a value in the output of an earlier step."""
        return Reference(step_id, parse_path(*path))

    def __getitem__(self, step_id: int) -> StepOutcome:
        """Return the outcome of an earlier step."""
        return self.outcomes[step_id]


StepLike: TypeAlias = Step | Mapping[str, Any]
Action: TypeAlias = StepLike | Sequence[StepLike] | Done
PlanItem: TypeAlias = (
    StepLike | Callable[[RunState], StepLike] | Sequence[StepLike | Callable[[RunState], StepLike]]
)
Plan: TypeAlias = Sequence[PlanItem] | Callable[[RunState], Action] | Generator[Action, RunState, Any]


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did.

    Attributes:
        transaction_id: The transaction, committed.
        steps_executed: Steps that were answered, the ones that ran again included.
        rollbacks: The answers of the failures, in order.
        outcomes: The outcomes that were committed, by step.
        commit: What the commit published.
        result: What `Done` gave, or the generator returned.
    """

    transaction_id: str
    steps_executed: int
    rollbacks: tuple[StepOutcome, ...]
    outcomes: Mapping[int, StepOutcome]
    commit: CommitResult
    result: Any = None

    @property
    def hints(self) -> tuple[str, ...]:
        """The hints of the failures, in order."""
        return tuple(failure.hint for failure in self.rollbacks)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The outputs that were committed, in step order."""
        return tuple(self.outcomes[step_id].output for step_id in sorted(self.outcomes))


class RunProgress:
    """How far a run has come: what both loops keep and neither waits for."""

    def __init__(self, transaction_id: str, next_step_id: int) -> None:
        self.transaction_id = transaction_id
        self._next_step_id = next_step_id
        self._outcomes: dict[int, StepOutcome] = {}
        self._tries: dict[int, int] = {}
        self._rollbacks: list[StepOutcome] = []
        self._constraints: tuple[str, ...] = ()
        self._hint = ""
        self._context_reset = False
        self._steps_executed = 0

    def state(self) -> RunState:
        """Return what the plan is told now."""
        return RunState(
            transaction_id=self.transaction_id,
            step_id=self._next_step_id,
            tries=self._tries.get(self._next_step_id, 0),
            constraints=self._constraints,
            hint=self._hint,
            last_failure=self._rollbacks[-1] if self._rollbacks else None,
            context_reset=self._context_reset,
            outcomes=MappingProxyType(dict(self._outcomes)),
        )

    def take(self, outcomes: Sequence[StepOutcome]) -> None:
        """Take the answers to a step or a group.

        Raises:
            TransactionAborted: one failed for good.
            StepInDoubt: whether one took effect is unknown.
            StepAwaitingApproval: one waits for a person.
        """
        self._steps_executed += len(outcomes)
        for outcome in outcomes:
            self._tries[outcome.step_id] = self._tries.get(outcome.step_id, 0) + 1
            self._outcomes[outcome.step_id] = outcome
        failure = next((o for o in outcomes if o.status is not StepStatus.SUCCESS), None)
        if failure is None:
            self._context_reset = False
            self._next_step_id = outcomes[-1].next_step_id
            return
        if failure.status is not StepStatus.ROLLBACK_TRIGGERED:
            raise_unless_succeeded(outcomes)
        self._rollbacks.append(failure)
        self._hint = failure.hint
        self._constraints = failure.constraints
        self._go_back(failure.next_step_id, context_reset=failure.context_reset)

    def take_conflict(self, conflict: CommitConflict) -> None:
        """Take a commit's conflict, where the transaction was rewound for it; else raise it."""
        if not conflict.next_step_id:
            raise conflict
        self._hint = f"Hint: another transaction changed {conflict.key}; read it again and redo what used it."
        self._go_back(conflict.next_step_id, context_reset=False)

    def report(self, commit: CommitResult, result: Any) -> RunReport:
        """Return what the run did."""
        return RunReport(
            transaction_id=self.transaction_id,
            steps_executed=self._steps_executed,
            rollbacks=tuple(self._rollbacks),
            outcomes=MappingProxyType(dict(self._outcomes)),
            commit=commit,
            result=result,
        )

    def _go_back(self, step_id: int, *, context_reset: bool) -> None:
        self._next_step_id = step_id
        self._context_reset = context_reset
        self._outcomes = {number: kept for number, kept in self._outcomes.items() if number < step_id}


def run_plan(
    transaction: Transaction, plan: Plan, approval_timeout: float | timedelta | None = 0
) -> RunReport:
    """Run a plan in a transaction and commit it; see `Client.run`."""
    transaction.begin()
    progress = RunProgress(transaction.transaction_id, transaction.next_step_id)
    next_action = as_function(plan)
    while True:
        action = next_action(progress.state())
        if isinstance(action, Done):
            try:
                return progress.report(transaction.commit(), action.result)
            except CommitConflict as conflict:
                progress.take_conflict(conflict)
        else:
            steps = as_steps(action)
            outcomes = (transaction.run_step(steps[0]),) if len(steps) == 1 else transaction.try_group(steps)
            if is_waiting(outcomes):
                outcomes = transaction.wait_for_approval(approval_timeout)
            progress.take(outcomes)


def is_waiting(outcomes: Sequence[StepOutcome]) -> bool:
    """Whether a person is asked about one of these."""
    return any(outcome.status is StepStatus.AWAITING_APPROVAL for outcome in outcomes)


def as_function(plan: Plan) -> Callable[[RunState], Action]:
    """Return a plan as a function of the state."""
    if isinstance(plan, Generator):
        return _Dialogue(plan)
    if callable(plan):
        return plan
    if isinstance(plan, str | bytes | Mapping) or not isinstance(plan, Sequence):
        raise TypeError(f"a plan is a list, a function or a generator, not {type(plan).__name__}")
    return ListedPlan(plan).resolved


def as_steps(action: Any) -> list[Step]:
    """Return what a plan gave as steps: one, or the members of a group."""
    if isinstance(action, Step | Mapping):
        return [as_step(action)]
    if isinstance(action, Sequence) and not isinstance(action, str | bytes) and action:
        return [as_step(member) for member in action]
    raise TypeError(f"a plan gives a Step, a mapping, a list of these, or Done(), not {action!r}")


def as_step(step: Any) -> Step:
    """Return a step, which may be given as a mapping with the keys of `Step`."""
    if isinstance(step, Step):
        return step
    if not isinstance(step, Mapping):
        raise TypeError(f"a step is a Step or a mapping with 'tool' and 'arguments', not {step!r}")
    unknown = set(step) - {"tool", "arguments", "raw_context", "step_timeout", "request_id"}
    if unknown or "tool" not in step:
        raise TypeError(
            "a step's mapping has 'tool' and may have 'arguments', 'raw_context', 'step_timeout', 'request_id'"
            + (f"; {', '.join(sorted(map(repr, unknown)))} is none of them" if unknown else "")
        )
    return Step(**step)


class ListedPlan:
    """A plan given as a list, laid out by step number."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._members: list[Any] = []
        self._group_ends: list[int] = []
        for item in items:
            members = item if isinstance(item, list | tuple) else (item,)
            if not members:
                raise TypeError("a group in a plan has at least one step")
            self._members += members
            self._group_ends += [len(self._members)] * len(members)

    def due(self, step_id: int) -> list[Any]:
        """Return what is to run at a step: it, or what is left of its group; empty at the end."""
        if step_id > len(self._members):
            return []
        return self._members[step_id - 1 : self._group_ends[step_id - 1]]

    def resolved(self, state: RunState) -> Action:
        """Return the next action, its functions called."""
        due = self.due(state.step_id)
        if not due:
            return Done()
        return [as_step(member(state) if callable(member) else member) for member in due]


class _Dialogue:
    """A generator as a function: what it yields is the answer to the state it is sent."""

    def __init__(self, generator: Generator[Action, RunState, Any]) -> None:
        self._generator = generator
        self._started = False

    def __call__(self, state: RunState) -> Action:
        try:
            if self._started:
                return self._generator.send(state)
            self._started = True
            return next(self._generator)
        except StopIteration as end:
            return Done(end.value)
