"""The rollback controller: where a transaction goes on after a failed step.

Pure: the decision depends on the hint's keys, the dependency graph (through ``roots``), the
counters and the policy, and on nothing else. The rungs, in their
order: a jump to the root cause, else a local backtrack, either within the replay
budget, else a global reset, else the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.records import (
    Decision,
    PassedOverRung,
    PathElement,
    Policy,
    RejectedCalls,
    Strategy,
)
from agenttx_server.engine.requests import RootCause

__all__ = ["Counters", "Failure", "Pivot", "decide", "replay_budget"]


@dataclass(frozen=True, slots=True)
class Counters:
    """What the decisions so far leave behind.

    ``failures`` (failed step → how often), ``jumps`` (root → how often it was jumped to) and
    ``budget_spent`` (replayed steps) belong to the epoch; ``global_resets`` and
    ``furthest_step`` (0 before the first step) to the transaction.
    """

    failures: Mapping[int, int] = field(default_factory=dict)
    jumps: Mapping[int, int] = field(default_factory=dict)
    budget_spent: int = 0
    global_resets: int = 0
    furthest_step: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The failed step that is decided on.

    ``group_first`` and ``group_last`` are the first and last step of its group (the step itself
    for a plain step). ``keys`` are the hint's, most telling first. ``never_called``: the
    call was refused before its tool ran. ``approval_rejected``: a person said no.
    """

    failed_step: int
    group_first: int
    group_last: int
    keys: tuple[str, ...] = ()
    never_called: bool = False
    approval_rejected: bool = False


@dataclass(frozen=True, slots=True)
class Pivot:
    """The last completed IRREVERSIBLE step without undo: nothing goes back past it."""

    step_id: int
    tool_name: str


def replay_budget(factor: Decimal, furthest_step: int) -> int:
    """Steps that one epoch may replay: ⌈c · N · ⌈log₂(N + 1)⌉⌉, exactly, for N ≥ 1.

    With c = 2: N = 5 → 30, N = 10 → 80, N = 50 → 600.
    """
    furthest = max(furthest_step, 1)
    # A Fraction, for Decimal's product is rounded to the digits of the context.
    return math.ceil(Fraction(factor) * furthest * furthest.bit_length())


def decide(
    failure: Failure,
    *,
    policy: Policy,
    counters: Counters,
    roots: Callable[[str], RootCause],
    group_starts: Sequence[int],
    pivot: Pivot | None,
) -> tuple[Decision, Counters]:
    """Decide on a failure; answers the decision and the counters after it.

    ``roots`` traces a key back from the failed step. ``group_starts`` are the first steps of
    the live groups before the failing one, ascending. The decision's ``target_step`` is 1 for
    a reset and 0 for an abort, its ``cost`` 0 for both; its ``kept_effects`` are left empty,
    but an abort with a pivot behind it says so in ``abort_reason``.
    """
    return _Deliberation(failure, policy, counters, roots, group_starts, pivot).outcome()


@dataclass(frozen=True, slots=True)
class _Trace:
    """The earliest root over all keys of the hint."""

    root: int
    key: str
    path: tuple[PathElement, ...]


class _Deliberation:
    """One failure on its way down the rungs; ``_passed_over`` grows on the way."""

    def __init__(
        self,
        failure: Failure,
        policy: Policy,
        counters: Counters,
        roots: Callable[[str], RootCause],
        group_starts: Sequence[int],
        pivot: Pivot | None,
    ) -> None:
        self._failure = failure
        self._policy = policy
        self._group_starts = group_starts
        self._pivot = pivot
        self._number = counters.failures.get(failure.failed_step, 0) + 1
        self._counters = replace(
            counters,
            failures={**counters.failures, failure.failed_step: self._number},
            furthest_step=max(counters.furthest_step, failure.group_last),
        )
        self._budget = replay_budget(policy.replay_budget_factor, self._counters.furthest_step)
        # A rejected approval is about this very call: its keys lead nowhere earlier.
        self._trace = None if failure.approval_rejected else _earliest_root(failure, roots)
        self._passed_over: list[PassedOverRung] = []

    def outcome(self) -> tuple[Decision, Counters]:
        strategy, target = Strategy.DEPENDENCY_JUMP, self._jump_target()
        if target is None:
            strategy, target = Strategy.LOCAL_BACKTRACK, self._backtrack_target()
        # Over the budget means escalate: no cheaper rung is looked for in between.
        if target is not None and self._fits_budget(strategy, target):
            return self._replay(strategy, target)
        if self._may_reset():
            return self._reset()
        return self._abort()

    # --- the rungs: a target, or None and the reason noted

    def _jump_target(self) -> int | None:
        trace = self._trace
        if trace is None:
            self._pass_over(Strategy.DEPENDENCY_JUMP, 0, self._why_untraced())
            return None
        target = self._outside_open_group(trace.root)
        limit = max(self._policy.max_local_depth, 1)
        jumps = self._counters.jumps.get(trace.root, 0)
        if self._passes_pivot(target):
            self._pass_over(Strategy.DEPENDENCY_JUMP, target, self._pivot_reason())
        elif jumps >= limit:
            reason = f"step {trace.root} was jumped to {_times(jumps)} in this epoch, the limit is {limit}"
            self._pass_over(Strategy.DEPENDENCY_JUMP, target, reason)
        else:
            return target
        return None

    def _backtrack_target(self) -> int | None:
        target = self._outside_open_group(self._backtracked_to())
        limit = self._policy.max_local_depth
        if self._number > limit:
            reason = (
                f"step {self._failure.failed_step} failed {_times(self._number)} in this epoch, "
                f"max_local_depth is {limit}"
            )
            self._pass_over(Strategy.LOCAL_BACKTRACK, target, reason)
        elif self._passes_pivot(target):
            self._pass_over(Strategy.LOCAL_BACKTRACK, target, self._pivot_reason())
        else:
            return target
        return None

    def _backtracked_to(self) -> int:
        if self._retries_in_place():
            return self._failure.group_first
        groups = self._group_starts
        target = groups[-self._number] if self._number <= len(groups) else 1
        return target if self._pivot is None else max(target, self._pivot.step_id + 1)

    def _may_reset(self) -> bool:
        limit = self._policy.max_global_resets
        if self._counters.global_resets >= limit:
            made = self._counters.global_resets
            reason = f"{made} {'was' if made == 1 else 'were'} made, max_global_resets is {limit}"
        elif self._pivot is not None:
            reason = self._pivot_reason()
        else:
            return True
        self._pass_over(Strategy.GLOBAL_RESET, 1, reason)
        return False

    # --- what a rung asks

    def _retries_in_place(self) -> bool:
        failure = self._failure
        retried = self._policy.rejected_calls is RejectedCalls.RETRY_STEP and failure.never_called
        return failure.approval_rejected or (retried and self._trace is None)

    def _outside_open_group(self, target: int) -> int:
        # The members of the failing group stand or fall together until it is settled.
        return min(target, self._failure.group_first)

    def _passes_pivot(self, target: int) -> bool:
        return self._pivot is not None and target <= self._pivot.step_id

    def _pivot_reason(self) -> str:
        assert self._pivot is not None
        return f"irreversible step {self._pivot.step_id}"

    def _why_untraced(self) -> str:
        if self._failure.approval_rejected:
            return "the call was not approved; only it is asked for again"
        if not self._failure.keys:
            return "the hint names no key"
        names = ", ".join(repr(key) for key in self._failure.keys)
        return f"no earlier step gave {names}"

    def _cost(self, target: int) -> int:
        return self._failure.group_last - target + 1

    def _fits_budget(self, strategy: Strategy, target: int) -> bool:
        cost, left = self._cost(target), self._budget - self._counters.budget_spent
        if cost <= left:
            return True
        self._pass_over(
            strategy,
            target,
            f"it replays {_steps(cost)}, and of the replay budget of {self._budget} {max(left, 0)} are left "
            f"(replay_budget_factor {self._policy.replay_budget_factor})",
        )
        return False

    def _pass_over(self, strategy: Strategy, target: int, reason: str) -> None:
        self._passed_over.append(PassedOverRung(strategy, target, reason))

    # --- the ends

    def _replay(self, strategy: Strategy, target: int) -> tuple[Decision, Counters]:
        cost = self._cost(target)
        after = replace(self._counters, budget_spent=self._counters.budget_spent + cost)
        if strategy is Strategy.DEPENDENCY_JUMP:
            assert self._trace is not None
            root = self._trace.root
            after = replace(after, jumps={**after.jumps, root: after.jumps.get(root, 0) + 1})
        return self._decision(strategy, target, cost), after

    def _reset(self) -> tuple[Decision, Counters]:
        new_epoch = Counters(
            global_resets=self._counters.global_resets + 1, furthest_step=self._counters.furthest_step
        )
        return self._decision(Strategy.GLOBAL_RESET, 1, 0), new_epoch

    def _abort(self) -> tuple[Decision, Counters]:
        # The last two rungs passed over are the one that escalated and the reset.
        escalated, reset = self._passed_over[-2:]
        reason = f"no {_NAMES[escalated.strategy]}: {escalated.reason}; no global reset: {reset.reason}"
        if self._pivot is not None:
            reason += f"; irreversible step {self._pivot.step_id} ({self._pivot.tool_name}) stays in effect"
        return self._decision(Strategy.ABORT, 0, 0, reason), self._counters

    def _decision(self, strategy: Strategy, target: int, cost: int, abort_reason: str = "") -> Decision:
        trace, keys = self._trace, self._failure.keys
        return Decision(
            strategy=strategy,
            failed_step=self._failure.failed_step,
            target_step=target,
            failure_number=self._number,
            cost=cost,
            budget_total=self._budget,
            budget_spent_before=self._counters.budget_spent,
            error_key=trace.key if trace else next(iter(keys), None),
            path=trace.path if trace else (),
            passed_over=tuple(self._passed_over),
            abort_reason=abort_reason,
        )


_NAMES = {Strategy.DEPENDENCY_JUMP: "dependency jump", Strategy.LOCAL_BACKTRACK: "local backtrack"}


def _earliest_root(failure: Failure, roots: Callable[[str], RootCause]) -> _Trace | None:
    earliest: _Trace | None = None
    for key in failure.keys:
        found = roots(key)
        if found.step_id is None or found.step_id >= failure.failed_step:
            continue
        if earliest is None or found.step_id < earliest.root:
            earliest = _Trace(found.step_id, key, found.path)
    return earliest


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
