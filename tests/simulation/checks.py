"""What must hold of a finished history: the invariants I1 to I10, by the world's log, the store and the answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.simulation.client import Notebook, Sent, is_final
from tests.simulation.database import stored_transaction
from tests.simulation.servers import Cluster
from tests.simulation.tools import acts_outside
from tests.simulation.world import UNDO_NAMES, Run
from tests.support.engine_harness import aggregate_of

from agenttx_server.engine.errors import CommitConflict, EngineError
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectState,
    EventType,
    Isolation,
    OnConflict,
    OnUndoFailure,
    StepResolution,
    TransactionId,
    TransactionStatus,
    UndoResolution,
    UndoState,
)
from agenttx_server.engine.requests import CancelStepAnswer, CompensationAnswer, ResolveStepAnswer, StepAnswer
from agenttx_server.engine.transaction import Transaction

__all__ = ["Breach", "check_answers", "check_history", "same_answers"]


class Breach(AssertionError):
    """An invariant does not hold."""


def _hold(holds: bool, what: str, *about: Any) -> None:
    if not holds:
        raise Breach(" ".join([what, *map(str, about)]))


def same_answers(first: Any, again: Any) -> bool:
    """Whether two final answers to one request are the same, but for what says that one is a repeat."""
    if isinstance(first, CommitConflict):
        return isinstance(again, CommitConflict) and again.message == first.message
    if isinstance(first, tuple):
        return (
            isinstance(again, tuple)
            and len(again) == len(first)
            and all(map(_same_step_answer, first, again))
        )
    if isinstance(first, ResolveStepAnswer):
        if not isinstance(again, ResolveStepAnswer):
            return False
        both = first.result is not None and again.result is not None
        return not both or _same_step_answer(first.result, again.result)
    return bool(first == again)


def _same_step_answer(first: Any, again: Any) -> bool:
    if not (isinstance(first, StepAnswer) and isinstance(again, StepAnswer)):
        return False
    plain = {"replayed": False, "rewound": False}
    return replace(first, **plain) == replace(again, **plain)


# --- answers (I3) ---------------------------------------------------------------------------


def check_answers(sent: list[Sent]) -> Iterator[tuple[Sent, Any]]:
    """Hold each request's final answers against one another; yield those that have one, with it."""
    for item in sent:
        final = [answer for answer in item.answers if not _is_refusal(answer) and is_final(answer)]
        if not final:
            continue
        for answer in final[1:]:
            _hold(same_answers(final[0], answer), f"{item.name} has two answers:", final[0], answer)
        yield item, final[0]


def _is_refusal(answer: Any) -> bool:
    return isinstance(answer, EngineError) and not isinstance(answer, CommitConflict)


# --- the rest ---------------------------------------------------------------------------------


def check_history(cluster: Cluster, notebook: Notebook) -> None:
    """Hold the whole history against the invariants."""
    database = cluster.database
    _hold(not database.unrecovered, "not recovered:", database.unrecovered)
    for transaction_id, stored in database.transactions.items():
        _check_ended(transaction_id, stored)
    facts = _Facts(cluster)
    _check_state(cluster, facts)
    _check_effects(cluster, facts)
    _check_runs(cluster, facts)
    _check_undo(cluster, facts)
    _check_deliveries(cluster, facts)
    _check_memory(cluster)
    _check_fencing(cluster)
    _check_commits(cluster, notebook)


def _check_ended(transaction_id: str, stored: Any) -> None:
    record = stored.record
    _hold(record.status.is_terminal, f"{transaction_id} has not ended:", record)
    _hold(
        record.open_group is None and record.pending_rewind is None, f"{transaction_id} has a rest:", record
    )
    sequences = [event.sequence for event in stored.events]
    _hold(sequences == list(range(1, len(sequences) + 1)), f"{transaction_id} has gaps in its events")
    if record.status is not TransactionStatus.COMMITTED:
        live = [attempt for attempt in stored.ordered_attempts() if not stored.is_rewound(attempt)]
        _hold(not live, f"{transaction_id} was aborted and has live steps:", live)
        _hold(not stored.writes, f"{transaction_id} was aborted and has state")
        _hold(not stored.effects, f"{transaction_id} was aborted and has effects:", stored.effects)


class _Facts:
    """The live attempts of committed transactions, and the run that counted for each."""

    def __init__(self, cluster: Cluster) -> None:
        self.live: dict[tuple[str, int, int], AttemptRecord] = {}
        self.committed: list[tuple[int, str]] = []
        for transaction_id, stored in cluster.database.transactions.items():
            if stored.record.status is not TransactionStatus.COMMITTED:
                continue
            self.committed.append((stored.record.commit_version, transaction_id))
            for attempt in stored.ordered_attempts():
                if not stored.is_rewound(attempt) and attempt.state is AttemptState.COMPLETED:
                    self.live[(transaction_id, attempt.step_id, attempt.attempt)] = attempt
        self.committed.sort()
        self.resolved = {
            (transaction_id, event.step_id, event.attempt): json.loads(event.payload)["resolution"]
            for transaction_id, stored in cluster.database.transactions.items()
            for event in stored.events
            if event.type is EventType.STEP_RESOLVED
        }
        self.runs: dict[tuple[str, int, int], list[Run]] = {}
        for run in cluster.world.runs:
            attempt_of = cluster.database.transactions[TransactionId(run.transaction_id)].attempts
            attempt = attempt_of.get((run.step_id, run.attempt))
            # A server that is behind may count an attempt that another one has made meanwhile.
            if attempt is not None and attempt.request_id == f"q-{run.call.name}":
                self.runs.setdefault((run.transaction_id, run.step_id, run.attempt), []).append(run)
        self.completed = cluster.world.completed

    def counting_run(self, at: tuple[str, int, int]) -> Run | None:
        """The run whose result an attempt has, None if a person said that it succeeded."""
        if self.resolved.get(at) == StepResolution.SUCCEEDED:
            return None
        process, number = self.completed[at]
        return [
            run
            for run in self.runs[at]
            if run.ended == "returned" and run.process == process and run.number < number
        ][-1]


def _check_state(cluster: Cluster, facts: _Facts) -> None:
    """Committed state is what the committed transactions wrote, one after another (I1, I2, I8)."""
    versions = [version for version, _ in facts.committed]
    _hold(len(set(versions)) == len(versions), "two commits of one version:", facts.committed)
    _hold(cluster.database.commit_version == len(versions), "commits were lost or doubled:", facts.committed)
    state: dict[str, str | None] = {}
    counted: dict[str, int] = {}
    for _, transaction_id in facts.committed:
        record = cluster.database.transactions[TransactionId(transaction_id)].record
        is_serializable = record.isolation is Isolation.SERIALIZABLE
        for at in sorted(at for at in facts.live if at[0] == transaction_id):
            run = facts.counting_run(at)
            if run is None:
                continue
            if is_serializable:
                for key, seen in run.reads.items():
                    _hold(state.get(key) == seen, f"{at} read {seen} of {key} and not", state.get(key))
            state.update(run.puts)
            for key in run.counted:
                counted[key] = counted.get(key, 0) + 1
    actual = {key: value for key, (value, _) in cluster.database.committed.items() if value is not None}
    expected = {key: value for key, value in state.items() if value is not None}
    _hold(actual == expected, "committed state is", actual, "and should be", expected)
    for key, times in counted.items():
        _hold(actual[key] == str(times), f"{key} was counted up {times} times and is", actual[key])


def _check_effects(cluster: Cluster, facts: _Facts) -> None:
    """What stands outside is what is committed, named as kept, or accepted; nothing else, nothing less (I1, I2)."""
    kept: dict[str, set[tuple[int, int]]] = {}
    for transaction_id, stored in cluster.database.transactions.items():
        named = {(effect.step_id, effect.attempt) for effect in stored.record.kept_effects}
        named |= {
            (undo.step_id, undo.attempt)
            for undo in stored.undo.values()
            if undo.resolution is UndoResolution.KEPT
        }
        kept[transaction_id] = named
    for (name, _), runs in cluster.world.standing.items():
        allowed = any(
            (run.transaction_id, run.step_id, run.attempt) in facts.live
            or (run.step_id, run.attempt) in kept[run.transaction_id]
            for run in runs
        )
        if not allowed and all(_is_untold(cluster, run) for run in runs):
            continue
        _hold(allowed, f"effect {name} stands and nobody said so:", [_where(run) for run in runs])
    standing = {
        (run.transaction_id, run.step_id, run.attempt)
        for runs in cluster.world.standing.values()
        for run in runs
    }
    keys = {key for _, key in cluster.world.standing}
    for at, attempt in facts.live.items():
        if not acts_outside(attempt.tool_name) or at in facts.resolved:
            continue
        _hold(
            at in standing or attempt.idempotency_key in keys,
            f"the effect of committed {at} {attempt.tool_name} is gone",
        )


def _is_untold(cluster: Cluster, run: Run) -> bool:
    """Whether a run's server lost its lease, went on, and died before it could tell what it had done.

    Only a system that checks the fence that tools are given can hold off such an effect.
    """
    log = cluster.world.log
    was_claimed = any(
        entry.kind == "claim_orphans"
        and run.transaction_id in entry.text.split()
        and entry.process != run.process
        for entry in log[run.number :]
    )
    return was_claimed and any(entry.kind == "crash" and entry.process == run.process for entry in log)


def _check_runs(cluster: Cluster, facts: _Facts) -> None:
    """Tools with effects run once an attempt, idempotent ones under one key, irreversible ones once (I3, I10)."""
    by_call: dict[str, list[Run]] = {}
    for at, runs in facts.runs.items():
        tool_name = runs[0].call.tool_name
        if not acts_outside(tool_name):
            continue
        _hold(len({run.key for run in runs}) == 1, f"{at} ran under several keys")
        if tool_name == "book":
            _hold(len(runs) == 1, f"{at} {tool_name} ran {len(runs)} times in one attempt")
        by_call.setdefault(runs[0].call.name, []).extend(runs)
    for name, runs in by_call.items():
        call = runs[0].call
        if call.tool_name in ("pay", "wire") and call.tool_name != "wire":
            _hold(
                len(runs) <= 1 + call.retries_allowed,
                f"{call.tool_name} {name} ran {len(runs)} times:",
                [_where(run) for run in runs],
            )
        if call.tool_name in UNDO_NAMES:
            undone = {
                (run.key, run.attempt)
                for (undone_name, _), undone_runs in cluster.world.undone.items()
                if undone_name == name
                for run in undone_runs
            }
            for run in runs:
                reused = [attempt for key, attempt in undone if key == run.key and attempt < run.attempt]
                _hold(not reused, f"{name} ran under a key whose effect was undone:", _where(run))


def _check_undo(cluster: Cluster, facts: _Facts) -> None:
    """Undo runs until it is done, not after that, and never after a later forward step (I5)."""
    world = cluster.world
    first_run: dict[tuple[str, int, int], int] = {}
    for at, runs in facts.runs.items():
        first_run[at] = runs[0].number
    late: set[tuple[str, int, int]] = set()
    for transaction_id, stored in cluster.database.transactions.items():
        for event in stored.events:
            if event.type is EventType.LATE_EFFECT_REPORTED:
                late.add((transaction_id, event.step_id, event.attempt))
        late |= {(transaction_id, undo.step_id, undo.attempt) for undo in stored.undo.values() if undo.late}
        for undo in stored.undo.values():
            is_owed = undo.state in (UndoState.FAILED, UndoState.LATE)
            _hold(not is_owed, f"{transaction_id} still owes", undo)
    for entry in world.log:
        if entry.kind != "undo":
            continue
        at = (entry.transaction_id, entry.step_id, entry.attempt)
        stored = cluster.database.transactions[entry.transaction_id]  # type: ignore[index]
        continues = stored.record.policy.on_undo_failure is OnUndoFailure.CONTINUE
        if at in late or continues:
            continue
        undone = stored.attempts[(entry.step_id, entry.attempt)]
        for (transaction_id, step_id, attempt), number in first_run.items():
            if transaction_id != entry.transaction_id or number > entry.number:
                continue
            forward = stored.attempts.get((step_id, attempt))
            if forward is None:
                continue
            is_later = step_id <= entry.step_id and (
                forward.generation > undone.generation
                or (step_id == entry.step_id and attempt > entry.attempt)
            )
            _hold(
                not is_later,
                f"{entry.name} of {at} was undone after step {step_id}.{attempt} had begun, at",
                entry.number,
            )


def _check_deliveries(cluster: Cluster, facts: _Facts) -> None:
    """Effects leave after the commit only, in order, each until it is delivered or dead (I4)."""
    published: dict[str, int] = {}
    for entry in cluster.world.log:
        if entry.kind in ("write", "unsure") and " publish" in entry.text:
            published[entry.transaction_id] = entry.number
    delivered: dict[tuple[str, str], int] = {}
    tried: dict[tuple[str, str], int] = {}
    for entry in cluster.world.log:
        if entry.kind not in ("deliver", "delivered"):
            continue
        _hold(
            published.get(entry.transaction_id, len(cluster.world.log)) < entry.number,
            f"{entry.name} of {entry.transaction_id} left before the commit",
        )
        (tried if entry.kind == "deliver" else delivered).setdefault(
            (entry.transaction_id, entry.name), entry.number
        )
    for transaction_id, stored in cluster.database.transactions.items():
        expected = sorted(
            (at[1], channel_payload)
            for at in facts.live
            if at[0] == transaction_id
            for channel_payload in _staged(facts, at)
        )
        actual = sorted((effect.step_id, effect.payload.strip('"')) for effect in stored.effects.values())
        _hold(actual == expected, f"{transaction_id} has the effects", actual, "and should have", expected)
        channels: dict[str, list[Any]] = {}
        for effect in sorted(stored.effects.values(), key=lambda item: (item.step_id, item.sequence)):
            settled = effect.state in (EffectState.DELIVERED, EffectState.DEAD, EffectState.DISCARDED)
            _hold(settled, f"an effect of {transaction_id} is left:", effect)
            if effect.state is EffectState.DELIVERED:
                _hold((transaction_id, effect.effect_id) in delivered, "never delivered:", effect)
            channels.setdefault(effect.channel, []).append(effect)
        given_up = {
            json.loads(event.payload)["effect_id"]
            for event in stored.events
            if event.type is EventType.EFFECT_DEAD
        }
        for effects in channels.values():
            in_order = [effect for effect in effects if effect.effect_id not in given_up]
            _check_order(transaction_id, in_order, tried, delivered)


def _staged(facts: _Facts, at: tuple[str, int, int]) -> list[str]:
    run = facts.counting_run(at)
    return [] if run is None else run.staged


def _check_order(
    transaction_id: str,
    effects: list[Any],
    tried: dict[tuple[str, str], int],
    delivered: dict[tuple[str, str], int],
) -> None:
    for earlier, later in itertools.pairwise(effects):
        first = delivered.get((transaction_id, earlier.effect_id))
        second = tried.get((transaction_id, later.effect_id))
        if first is not None and second is not None:
            _hold(first < second, f"{later.effect_id} left before {earlier.effect_id}")


def _check_memory(cluster: Cluster) -> None:
    """What servers have in memory is what is stored, where nobody else wrote since (I7)."""
    for server in cluster.servers:
        for transaction_id, entry in server.coordinator._cache._entries.items():
            if not entry.lock.locked():  # else memory may be ahead of a write under way
                check_cached(cluster, transaction_id, entry.transaction)


def check_cached(cluster: Cluster, transaction_id: Any, cached: Transaction | None) -> None:
    """Hold one transaction in memory against the store."""
    stored = cluster.database.transactions.get(transaction_id)
    if cached is None or stored is None or stored.record.revision != cached.record.revision:
        return
    rebuilt = aggregate_of(Transaction.rebuild(stored_transaction(cluster.database, transaction_id)))
    here = aggregate_of(cached)
    outbox = {"outbox_owner": rebuilt.record.outbox_owner, "owner": rebuilt.record.owner}
    here = replace(here, record=replace(here.record, **outbox))
    _hold(here == rebuilt, f"{transaction_id} in memory differs:\n", here, "\nstored:\n", rebuilt)


def _check_fencing(cluster: Cluster) -> None:
    """After a takeover nothing lands that was sent before it."""


def _check_commits(cluster: Cluster, notebook: Notebook) -> None:
    """Who was told that a transaction committed was told the truth (I1)."""
    for item in notebook.sent:
        if item.method != "commit":
            continue
        for answer in item.answers:
            if _is_refusal(answer):
                continue
            record = cluster.database.transactions[item.request.transaction_id].record
            status = record.status
            if isinstance(answer, CommitConflict):
                may_go_on = record.policy.on_conflict is OnConflict.REWIND
                _hold(
                    may_go_on or status is TransactionStatus.FAILED,
                    f"{item.name} met a conflict and is {status}",
                )
            else:
                _hold(status is TransactionStatus.COMMITTED, f"{item.name} was committed and is {status}")


def _where(run: Run) -> str:
    return f"{run.transaction_id} {run.step_id}.{run.attempt} on {run.process} at {run.number}"


__all__ += ["CancelStepAnswer", "CompensationAnswer", "check_cached"]
