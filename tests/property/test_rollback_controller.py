"""I9: whatever fails, however often, an agent that obeys ends, within the bound of executions."""

import dataclasses
from collections.abc import Callable
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from agenttx_server.engine.records import Policy, RejectedCalls, Strategy
from agenttx_server.engine.requests import RootCause
from agenttx_server.engine.rollback_controller import Counters, Failure, Pivot, decide, replay_budget

policies = st.builds(
    Policy,
    max_local_depth=st.integers(0, 5),
    max_global_resets=st.integers(0, 3),
    replay_budget_factor=st.sampled_from(
        [Decimal(text) for text in ("0.1", "0.3", "1", "2.0", "7.25", "100")]
    ),
    rejected_calls=st.sampled_from(RejectedCalls),
)


class FailingAgent:
    """Runs groups of a plan of ``length`` steps, drawing what fails and why; obeys every decision."""

    def __init__(self, draw: Callable[..., object], policy: Policy, length: int, stubborn: bool) -> None:
        self._draw = draw
        self._policy = policy
        self._length = length
        # A stubborn agent fails at its last step for ever; another fails where the dice say.
        self._stubborn = stubborn
        self.group_of: list[int] = []
        self.pivot: Pivot | None = None
        self.counters = Counters()
        self.executions = 0
        self.furthest = 0
        self.ended = False

    def run(self) -> None:
        while not self.ended and len(self.group_of) < self._length:
            first = len(self.group_of) + 1
            size = min(self._pick(1, 1, 1, 2, 3, 5), self._length - first + 1)
            self.executions += size
            self.furthest = max(self.furthest, first + size - 1)
            failed = self._failing_member(first, size)
            if failed is None:
                self.group_of += [first] * size
                # An irreversible step is a group of one.
                if size == 1 and self._pick(*[False] * 9, True):
                    self.pivot = Pivot(first, "charge")
            else:
                self._obey(Failure(failed, first, first + size - 1, *self._circumstances()))

    def _failing_member(self, first: int, size: int) -> int | None:
        if self._stubborn:
            return self._length if first + size > self._length else None
        return self._pick(first, first + size - 1) if self._pick(False, True) else None

    def _circumstances(self) -> tuple[tuple[str, ...], bool, bool]:
        return (
            self._pick((), ("a",), ("a", "b")),
            self._pick(False, True),
            self._pick(False, False, False, True),
        )

    def _obey(self, failure: Failure) -> None:
        before = dataclasses.replace(self.counters, failures=dict(self.counters.failures))
        roots = {key: self._pick(None, *range(1, failure.group_first)) for key in failure.keys}
        arguments = {
            "policy": self._policy,
            "counters": self.counters,
            "roots": lambda key: RootCause(roots[key]),
            "group_starts": sorted(set(self.group_of)),
            "pivot": self.pivot,
        }
        decision, after = decide(failure, **arguments)

        assert decide(failure, **arguments) == (decision, after)
        assert self.counters == before
        assert after.furthest_step == self.furthest
        assert decision.budget_total == replay_budget(self._policy.replay_budget_factor, self.furthest)
        assert decision.budget_spent_before == before.budget_spent
        if decision.strategy is Strategy.ABORT:
            assert decision.target_step == 0
            assert decision.abort_reason
            assert self.pivot is None or "irreversible step" in decision.abort_reason
            self.ended = True
            return
        assert not decision.abort_reason
        target = decision.target_step
        assert 1 <= target <= failure.group_first
        assert self.pivot is None or target > self.pivot.step_id
        if decision.strategy is Strategy.GLOBAL_RESET:
            assert target == 1
            assert after == Counters(global_resets=before.global_resets + 1, furthest_step=self.furthest)
        else:
            assert decision.cost == failure.group_last - target + 1
            assert after.budget_spent == before.budget_spent + decision.cost <= decision.budget_total
            assert after.global_resets == before.global_resets
            assert after.failures[failure.failed_step] == decision.failure_number
        assert after.global_resets <= self._policy.max_global_resets
        del self.group_of[target - 1 :]
        self.counters = after

    def _pick(self, *choices):
        return self._draw(st.sampled_from(choices))


@settings(max_examples=300)
@given(st.data(), policies, st.integers(1, 12), st.booleans())
def test_executions_stay_within_the_bound(data, policy, length, stubborn):
    agent = FailingAgent(data.draw, policy, length, stubborn)
    agent.run()
    budget = replay_budget(policy.replay_budget_factor, agent.furthest)
    assert agent.executions <= (policy.max_global_resets + 1) * (budget + agent.furthest)
    assert not stubborn or agent.ended


@given(
    st.decimals(min_value=Decimal("0.1"), max_value=1000, places=30, allow_nan=False),
    st.integers(1, 100_000),
)
def test_the_budget_is_the_smallest_integer_not_below_the_product(factor, furthest):
    log = 0
    while 2**log < furthest + 1:
        log += 1
    numerator, denominator = factor.as_integer_ratio()
    exact = numerator * furthest * log
    budget = replay_budget(factor, furthest)
    assert (budget - 1) * denominator < exact <= budget * denominator
