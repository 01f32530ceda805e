"""Transactions in lists and in full."""

from datetime import timedelta

import pytest
from tests.support.sample_records import NOON, TRANSACTION_ID, details, summary

from agenttx.records import (
    AttemptState,
    ContextEntry,
    EffectClass,
    FailedCompensation,
    KeptEffect,
    RewindPlan,
    RewindResult,
    RollbackResult,
    RunningStep,
    TransactionStatus,
)
from agenttx_server.cli.rendering.rewinds import abort_report, rewind_plan, rewind_report
from agenttx_server.cli.rendering.transactions import transaction_details, transaction_list

LATER = NOON + timedelta(minutes=2)
FAILED_UNDO = FailedCompensation(
    "c-1", 4, 0, 1, "mail.send", "mail.recall", "Hint: mail server is away.", "connection", 3, False, NOON
)
KEPT = KeptEffect(5, 0, 1, "payment.charge", EffectClass.IRREVERSIBLE, "irreversible step 5")


def test_a_wide_list_has_a_line_for_each_transaction(shown):
    lines = shown(transaction_list([summary()], LATER, 200), 200).splitlines()
    assert len(lines) == 2
    assert TRANSACTION_ID in lines[1]
    assert "2026-07-03 12:00:00Z (2 min ago)" in lines[1]
    assert "next step 7; rewound once; order=9001" in lines[1]


@pytest.mark.parametrize("status", [TransactionStatus.ROLLED_BACK, TransactionStatus.FAILED])
def test_the_abort_that_ended_a_transaction_is_not_one_of_its_rewinds(shown, status):
    never, once = (summary(status=status, generation=generation) for generation in (2, 3))
    assert "rewound" not in shown(transaction_list([never], LATER, 200), 200)
    assert "rewound once" in shown(transaction_list([once], LATER, 200), 200)


def test_a_list_fits_a_terminal_of_eighty_columns_with_whole_ids(shown):
    lines = shown(transaction_list([summary()], LATER, 80), 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith(f"{TRANSACTION_ID}  ACTIVE ")
    assert lines[2].startswith("next step 7; rewound once;")


def test_what_needs_attention_is_noted(shown):
    held = summary(rollback_incomplete=True, failed_compensations=(FAILED_UNDO,), dead_effects=2)
    text = shown(transaction_list([held], LATER, 200), 200)
    assert "rollback held by 1 failed undo" in text
    assert "2 effects DEAD" in text


def test_the_details_of_a_quiet_transaction_have_no_empty_lines_or_sections(shown):
    text = shown(transaction_details(details(), LATER))
    assert text.startswith(f"{TRANSACTION_ID}  ACTIVE")
    assert "6 in force, furthest 6, next 7" in text
    assert "may be idle for 15 min; a step may run for 30 s" in text
    assert "Constraints" not in text
    assert "abort reason" not in text


def test_steps_replayed_in_all_epochs_are_not_measured_by_the_budget_of_one(shown):
    info = details(generation=7, replayed_steps=11, replay_budget=8, budget_spent=3, global_resets=1)
    text = shown(transaction_details(info, LATER))
    assert (
        "6, with 11 steps to run again in all; 3 of 8 spent of this epoch's budget; 1 of 1 global reset"
        in text
    )


def test_the_details_tell_of_constraints_context_and_trouble(shown):
    info = details(
        status=TransactionStatus.ROLLING_BACK,
        generation=3,
        replayed_steps=8,
        replay_budget=80,
        budget_spent=8,
        constraints=("Hint: one.", "Hint: two."),
        context=(ContextEntry(1, "kv.put", "why\nnot " + "x" * 500),),
        context_truncated=True,
        rollback_incomplete=True,
        failed_compensations=(FAILED_UNDO,),
        kept_effects=(KEPT,),
        running_steps=(
            RunningStep(6, 0, 1, "slow", EffectClass.IRREVERSIBLE, AttemptState.IN_DOUBT, "r", NOON),
        ),
    )
    text = shown(transaction_details(info, LATER))
    assert (
        "2, with 8 steps to run again in all; 8 of 80 spent of this epoch's budget; 0 of 1 global reset"
        in text
    )
    assert "The rollback is held" in text
    assert "rewind again once their cause is gone" in text
    assert "mail.recall" in text
    assert "irreversible step 5" in text
    assert "IN_DOUBT" in text
    assert "2.  Hint: two." in text
    assert "why not xxx" in text
    assert "Context (the newest; --json has more)" in text


def test_times_that_the_server_does_not_tell_are_left_out(shown):
    assert "times" not in shown(
        transaction_details(details(idle_timeout_seconds=None, step_timeout_seconds=None), LATER)
    )
    assert "may be idle for ever" in shown(transaction_details(details(idle_timeout_seconds=0.0), LATER))


def test_a_long_context_is_cut_to_the_newest(shown):
    entries = tuple(ContextEntry(number, "kv.put", f"note {number}") for number in range(1, 31))
    text = shown(transaction_details(details(context=entries), LATER))
    assert "note 10\n" not in text
    assert "note 11\n" in text
    assert text.endswith("note 30")
    assert "--json has more" in text


def test_agents_names_reach_no_terminal_as_commands(shown):
    evil = "\x1b]0;owned\x07[red]"
    assert "\x1b" not in shown(transaction_list([summary(agent_id=evil)], LATER, 200))
    assert "\\x1b]0;owned\\x07[red]" in shown(transaction_details(details(agent_id=evil), LATER))


def rewound(**fields) -> RewindResult:
    given = {
        "next_step_id": 3,
        "generation": 2,
        "compensations_run": 1,
        "compensation_errors": (),
        "kept_effects": (),
        "rollback_incomplete": False,
        "plan": None,
    }
    return RewindResult(**(given | fields))


def test_a_rewind_says_where_it_goes_on(shown):
    assert (
        shown(rewind_report(3, rewound()))
        == "Rewound to step 3: 1 undo action run. Next step 3, generation 2."
    )


def test_a_held_rewind_says_so_and_why(shown):
    held = rewound(rollback_incomplete=True, compensation_errors=("Hint: away.",), kept_effects=(KEPT,))
    text = shown(rewind_report(3, held))
    assert "held by failed undo actions" in text
    assert "undo failed: Hint: away." in text
    assert "payment.charge" in text


def test_a_dry_run_counts_everything_and_changed_nothing(shown):
    plan = RewindPlan((), (), (), (), True, 8, 2, 5, 1)
    text = shown(rewind_plan(3, rewound(plan=plan)))
    assert (
        "would undo 8 steps, 2 undo actions, 5 state writes and 1 staged effect. Nothing was changed." in text
    )
    assert "Long lists were cut" in text


def test_a_rewind_of_nothing_says_so(shown):
    assert shown(rewind_plan(7, rewound(plan=RewindPlan((), (), (), (), False, 0, 0, 0, 0)))) == (
        "Nothing to undo: step 7 is next already."
    )


def test_an_abort_says_that_the_transaction_has_ended_or_that_it_is_held(shown):
    assert shown(abort_report(RollbackResult(2, (), (), False))) == (
        "Rolled back: 2 undo actions run. The transaction has ended."
    )
    assert "held" in shown(abort_report(RollbackResult(0, ("Hint: x.",), (), True)))
