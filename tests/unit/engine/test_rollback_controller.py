"""Every rung of the controller, in the order of the rules."""

from collections.abc import Callable, Mapping
from decimal import Decimal

import pytest

from agenttx_server.engine.records import (
    Decision,
    PassedOverRung,
    PathElement,
    Policy,
    RejectedCalls,
    Strategy,
)
from agenttx_server.engine.requests import RootCause
from agenttx_server.engine.rollback_controller import Counters, Failure, Pivot, decide, replay_budget

JUMP, BACKTRACK, RESET, ABORT = (
    Strategy.DEPENDENCY_JUMP,
    Strategy.LOCAL_BACKTRACK,
    Strategy.GLOBAL_RESET,
    Strategy.ABORT,
)
RETRY_STEP = Policy(rejected_calls=RejectedCalls.RETRY_STEP)
PLENTY = Decimal(100)


def plain(step_id: int, *keys: str, **more: bool) -> Failure:
    return Failure(step_id, step_id, step_id, keys, **more)


def roots_of(traced: Mapping[str, int]) -> Callable[[str], RootCause]:
    def roots(key: str) -> RootCause:
        if key not in traced:
            return RootCause(None)
        return RootCause(traced[key], (PathElement(99, key), PathElement(traced[key], "id")))

    return roots


def decided(
    failure: Failure,
    *,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    counters: Counters = Counters(),  # noqa: B008 - frozen
    traced: Mapping[str, int] | None = None,
    group_starts: range | list[int] | None = None,
    pivot: Pivot | None = None,
) -> tuple[Decision, Counters]:
    return decide(
        failure,
        policy=policy,
        counters=counters,
        roots=roots_of(traced or {}),
        group_starts=range(1, failure.group_first) if group_starts is None else group_starts,
        pivot=pivot,
    )


def drive(
    steps: int, failing: Callable[[int, int], bool], policy: Policy
) -> tuple[list[tuple[Strategy, int]], list[int]]:
    """An agent that obeys: (what was decided and where to go on), and the steps it executed."""
    counters, step_id, executed, decisions = Counters(), 1, [], []
    while step_id <= steps:
        executed.append(step_id)
        if not failing(step_id, executed.count(step_id)):
            step_id += 1
            continue
        decision, counters = decided(plain(step_id), policy=policy, counters=counters)
        decisions.append((decision.strategy, decision.target_step))
        if decision.strategy is ABORT:
            break
        step_id = decision.target_step
    return decisions, executed


# --- the budget ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "furthest", "budget"),
    [
        ("2", 5, 30),
        ("2", 10, 80),
        ("2", 50, 600),
        ("2.0", 1, 2),
        ("2.0", 0, 2),
        ("2.0", 7, 42),
        ("2.0", 8, 64),
        ("0.1", 8, 4),
        ("0.1", 1, 1),
        ("0.1", 10, 4),
        ("0.7", 10, 28),
        ("1000", 100_000, 1_700_000_000),
        ("1.0000000000000000000000000000000001", 1, 2),
    ],
)
def test_the_replay_budget_is_exact(factor, furthest, budget):
    # 0.1 · 10 · 4 and 0.7 · 10 · 4 are 4.000…01 and 28.000…01 where c is the nearest double.
    assert replay_budget(Decimal(factor), furthest) == budget


# --- rule 2: the jump ---------------------------------------------------------------------


def test_a_traced_key_is_jumped_to():
    decision, counters = decided(plain(9, "user_id"), traced={"user_id": 2})
    assert decision == Decision(
        strategy=JUMP,
        failed_step=9,
        target_step=2,
        failure_number=1,
        cost=8,
        budget_total=72,
        budget_spent_before=0,
        error_key="user_id",
        path=(PathElement(99, "user_id"), PathElement(2, "id")),
    )
    assert counters == Counters(failures={9: 1}, jumps={2: 1}, budget_spent=8, furthest_step=9)


def test_of_several_keys_the_earliest_root_wins_and_of_equals_the_first_key():
    decision, _ = decided(plain(9, "a", "b", "c", "d"), traced={"a": 5, "c": 3, "d": 3})
    assert (decision.target_step, decision.error_key) == (3, "c")


def test_a_root_is_jumped_to_as_often_as_the_depth_allows_and_no_other_is_tried():
    decision, counters = decided(
        plain(9, "a", "b"), traced={"a": 2, "b": 5}, counters=Counters(jumps={2: 2}, furthest_step=9)
    )
    assert (decision.strategy, decision.target_step) == (BACKTRACK, 8)
    assert (decision.error_key, decision.path[-1].step_id) == ("a", 2)
    assert decision.passed_over == (
        PassedOverRung(JUMP, 2, "step 2 was jumped to 2 times in this epoch, the limit is 2"),
    )
    assert counters.jumps == {2: 2}


@pytest.mark.parametrize(("depth", "limit"), [(0, 1), (1, 1), (2, 2), (16, 16)])
def test_jumps_to_one_root_are_limited_to_the_depth_but_one_is_always_allowed(depth, limit):
    policy = Policy(max_local_depth=depth, replay_budget_factor=PLENTY)
    for jumps in range(limit + 1):
        decision, _ = decided(
            plain(9, "a"),
            traced={"a": 2},
            policy=policy,
            counters=Counters(jumps={2: jumps}, furthest_step=9),
        )
        assert (decision.strategy is JUMP) == (jumps < limit)


def test_jumps_to_other_roots_do_not_count():
    assert decided(plain(9, "a"), traced={"a": 2}, counters=Counters(jumps={3: 9}))[0].strategy is JUMP


def test_a_root_that_is_not_before_the_step_is_none():
    assert decided(plain(4, "a"), traced={"a": 4})[0].strategy is BACKTRACK


def test_a_root_in_the_middle_of_an_earlier_group_is_jumped_to_itself():
    decision, _ = decided(Failure(7, 5, 8, ("a",)), traced={"a": 3}, group_starts=[1, 2])
    assert (decision.strategy, decision.target_step, decision.cost) == (JUMP, 3, 6)


def test_a_target_inside_the_failing_group_becomes_its_first_step():
    decision, _ = decided(Failure(7, 5, 8, ("a",)), traced={"a": 6}, group_starts=[1, 2])
    assert (decision.strategy, decision.target_step, decision.cost) == (JUMP, 5, 4)


# --- rule 3: the backtrack ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_id", "number", "target"), [(4, 1, 3), (4, 2, 2), (2, 1, 1), (2, 2, 1), (1, 1, 1), (1, 2, 1)]
)
def test_without_a_traced_key_the_dth_failure_goes_back_d_steps(step_id, number, target):
    decision, counters = decided(plain(step_id, "x"), counters=Counters(failures={step_id: number - 1}))
    assert (decision.strategy, decision.target_step) == (BACKTRACK, target)
    assert decision.failure_number == number
    assert decision.cost == step_id - target + 1
    assert decision.error_key == "x"
    assert decision.path == ()
    assert decision.passed_over == (PassedOverRung(JUMP, 0, "no earlier step gave 'x'"),)
    assert counters.failures == {step_id: number}


@pytest.mark.parametrize(("number", "target"), [(1, 5), (2, 2), (3, 1), (4, 1)])
def test_groups_are_gone_back_over_whole(number, target):
    # Steps 1 | 2 3 4 | 5 | 6 7 8, of which 7 fails.
    decision, _ = decided(
        Failure(7, 6, 8),
        policy=Policy(max_local_depth=4),
        counters=Counters(failures={7: number - 1}),
        group_starts=[1, 2, 5],
    )
    assert (decision.strategy, decision.target_step, decision.cost) == (BACKTRACK, target, 8 - target + 1)


def test_failures_of_other_steps_do_not_count():
    assert decided(plain(4), counters=Counters(failures={3: 9}))[0].target_step == 3


# --- rule 1: calls that never reached their tool ------------------------------------------


def test_a_rejected_call_is_asked_for_again_where_the_policy_says_so():
    decision, counters = decided(plain(4, "amount", never_called=True), policy=RETRY_STEP)
    assert (decision.strategy, decision.target_step, decision.cost) == (BACKTRACK, 4, 1)
    assert counters == Counters(failures={4: 1}, budget_spent=1, furthest_step=4)


def test_a_rejected_member_has_its_whole_group_run_again():
    decision, _ = decided(Failure(6, 5, 8, never_called=True), policy=RETRY_STEP)
    assert (decision.target_step, decision.cost) == (5, 4)


def test_by_default_a_rejected_call_goes_back_as_any_other():
    assert decided(plain(4, never_called=True))[0].target_step == 3


def test_a_rejected_call_with_a_traceable_key_jumps_all_the_same():
    decision, _ = decided(plain(4, "id", never_called=True), policy=RETRY_STEP, traced={"id": 2})
    assert (decision.strategy, decision.target_step) == (JUMP, 2)


def test_a_rejected_call_whose_jump_is_refused_goes_back_as_any_other():
    decision, _ = decided(
        plain(6, "id", never_called=True),
        policy=RETRY_STEP,
        traced={"id": 2},
        counters=Counters(jumps={2: 2}),
    )
    assert (decision.strategy, decision.target_step) == (BACKTRACK, 5)


def test_a_tool_that_was_called_is_no_rejected_call():
    assert decided(plain(4), policy=RETRY_STEP)[0].target_step == 3


@pytest.mark.parametrize("policy", [Policy(), RETRY_STEP])
def test_a_rejected_approval_stays_with_its_step_whatever_key_it_names(policy):
    decision, _ = decided(plain(4, "id", approval_rejected=True), policy=policy, traced={"id": 2})
    assert (decision.strategy, decision.target_step, decision.cost) == (BACKTRACK, 4, 1)
    assert decision.passed_over == (
        PassedOverRung(JUMP, 0, "the call was not approved; only it is asked for again"),
    )


def test_retries_in_place_end_after_the_local_depth():
    decision, _ = decided(plain(4, never_called=True), policy=RETRY_STEP, counters=Counters(failures={4: 2}))
    assert decision.strategy is RESET


# --- rule 4: the budget decides -----------------------------------------------------------


def test_what_does_not_fit_the_budget_escalates_and_no_cheaper_rung_is_tried():
    counters = Counters(budget_spent=68, furthest_step=9)
    assert decided(plain(9, "a"), traced={"a": 6}, counters=counters)[0].strategy is JUMP
    decision, _ = decided(plain(9, "a"), traced={"a": 5}, counters=counters)
    assert decision.strategy is RESET
    assert decision.passed_over == (
        PassedOverRung(
            JUMP,
            5,
            "it replays 5 steps, and of the replay budget of 72 4 are left (replay_budget_factor 2.0)",
        ),
    )


def test_the_furthest_step_ever_reached_sets_the_budget_and_is_kept():
    decision, counters = decided(plain(3), counters=Counters(furthest_step=10))
    assert decision.budget_total == 80
    assert counters.furthest_step == 10
    decision, counters = decided(Failure(11, 11, 15), counters=Counters(furthest_step=10))
    assert decision.budget_total == 2 * 15 * 4
    assert counters.furthest_step == 15


# --- rule 5: the end of the ladder --------------------------------------------------------


def test_a_reset_begins_a_new_epoch_and_keeps_what_belongs_to_the_transaction():
    before = Counters({4: 2, 3: 1}, {2: 2}, 17, 0, 6)
    decision, counters = decided(plain(4), counters=before)
    assert (decision.strategy, decision.target_step, decision.cost) == (RESET, 1, 0)
    assert decision.budget_spent_before == 17
    assert counters == Counters({}, {}, 0, 1, 6)
    assert before == Counters({4: 2, 3: 1}, {2: 2}, 17, 0, 6)


def test_an_abort_says_which_limits_were_met():
    decision, _ = decided(plain(4), counters=Counters(failures={4: 2}, global_resets=1))
    assert (decision.strategy, decision.target_step, decision.cost) == (ABORT, 0, 0)
    assert decision.abort_reason == (
        "no local backtrack: step 4 failed 3 times in this epoch, max_local_depth is 2; "
        "no global reset: 1 was made, max_global_resets is 1"
    )
    assert [rung.strategy for rung in decision.passed_over] == [JUMP, BACKTRACK, RESET]


def test_a_policy_without_depth_and_resets_aborts_at_once():
    decision, _ = decided(plain(1), policy=Policy(max_local_depth=0, max_global_resets=0))
    assert decision.abort_reason == (
        "no local backtrack: step 1 failed once in this epoch, max_local_depth is 0; "
        "no global reset: 0 were made, max_global_resets is 0"
    )


def test_an_abort_for_want_of_budget_names_the_factor():
    policy = Policy(max_global_resets=0, replay_budget_factor=Decimal("0.1"))
    decision, _ = decided(plain(8), policy=policy, counters=Counters(budget_spent=3))
    assert "replay_budget_factor 0.1" in decision.abort_reason
    assert "max_global_resets is 0" in decision.abort_reason


# --- rule 0: the pivot --------------------------------------------------------------------


def test_a_jump_past_an_irreversible_step_is_passed_over():
    for root in (2, 3):
        decision, counters = decided(plain(6, "a"), traced={"a": root}, pivot=Pivot(3, "charge"))
        assert (decision.strategy, decision.target_step) == (BACKTRACK, 5)
        assert decision.passed_over == (PassedOverRung(JUMP, root, "irreversible step 3"),)
        assert counters.jumps == {}
    assert decided(plain(6, "a"), traced={"a": 4}, pivot=Pivot(3, "charge"))[0].strategy is JUMP


def test_a_backtrack_stops_behind_an_irreversible_step():
    policy = Policy(max_local_depth=16)
    for number, target in ((1, 5), (2, 4), (3, 4), (9, 4)):
        decision, _ = decided(
            plain(6), policy=policy, counters=Counters(failures={6: number - 1}), pivot=Pivot(3, "charge")
        )
        assert (decision.strategy, decision.target_step, decision.cost) == (BACKTRACK, target, 6 - target + 1)


def test_directly_after_an_irreversible_step_only_the_step_itself_is_run_again():
    decision, _ = decided(Failure(7, 6, 8), group_starts=[1, 2, 5], pivot=Pivot(5, "charge"))
    assert (decision.strategy, decision.target_step, decision.cost) == (BACKTRACK, 6, 3)


def test_behind_an_irreversible_step_nothing_is_left_but_an_abort_that_names_it():
    decision, counters = decided(plain(6), counters=Counters(failures={6: 2}), pivot=Pivot(3, "charge"))
    assert decision.strategy is ABORT
    assert decision.passed_over[-1] == PassedOverRung(RESET, 1, "irreversible step 3")
    assert decision.abort_reason == (
        "no local backtrack: step 6 failed 3 times in this epoch, max_local_depth is 2; "
        "no global reset: irreversible step 3; irreversible step 3 (charge) stays in effect"
    )
    assert counters.global_resets == 0


def test_an_abort_for_another_reason_names_the_irreversible_step_too():
    decision, _ = decided(
        plain(6), counters=Counters(failures={6: 2}, global_resets=1), pivot=Pivot(3, "charge")
    )
    assert decision.abort_reason.endswith(
        "no global reset: 1 was made, max_global_resets is 1; irreversible step 3 (charge) stays in effect"
    )


# --- whole runs ---------------------------------------------------------------------------


def test_a_plan_of_four_whose_last_step_always_fails():
    policy = Policy(max_local_depth=2, max_global_resets=1, replay_budget_factor=PLENTY)
    decisions, executed = drive(4, lambda step_id, _: step_id == 4, policy)
    epoch = [(BACKTRACK, 3), (BACKTRACK, 2)]
    assert decisions == [*epoch, (RESET, 1), *epoch, (ABORT, 0)]
    assert len(executed) == 18
    assert executed.count(4) == 6


def test_a_small_budget_allows_one_backtrack_and_then_resets():
    policy = Policy(replay_budget_factor=Decimal("0.1"))
    decisions, _ = drive(8, lambda step_id, _: step_id == 8, policy)
    assert decisions == [(BACKTRACK, 7), (RESET, 1), (BACKTRACK, 7), (ABORT, 0)]


def test_a_step_that_recovers_lets_the_plan_end():
    decisions, executed = drive(4, lambda step_id, times: step_id == 4 and times < 3, Policy())
    assert decisions == [(BACKTRACK, 3), (BACKTRACK, 2)]
    assert executed == [1, 2, 3, 4, 3, 4, 2, 3, 4]


def test_two_steps_that_fail_in_turn_end_as_well():
    policy = Policy()
    decisions, executed = drive(
        6, lambda step_id, times: step_id == 6 or (step_id == 4 and times % 2 == 0), policy
    )
    assert decisions[-1] == (ABORT, 0)
    assert len(executed) <= 2 * (replay_budget(policy.replay_budget_factor, 6) + 6)


def test_a_traceable_key_that_never_heals_ends_in_an_abort():
    counters, step_id, executed, strategies = Counters(), 1, 0, []
    while step_id:
        executed += 1
        if step_id < 5:
            step_id += 1
            continue
        decision, counters = decided(plain(5, "id"), traced={"id": 2}, counters=counters)
        strategies.append(decision.strategy)
        step_id = decision.target_step
    assert strategies == [JUMP, JUMP, RESET, JUMP, JUMP, ABORT]
    assert executed <= 2 * (30 + 5)
