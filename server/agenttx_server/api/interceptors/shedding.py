"""How much work a server that is behind has in its hands at once, so that what it takes is answered in time.

A step's stay is measured from when its call is let in to when it is answered, without the time in which its tool runs: a
thousand steps that wait for slow tools are no load, and three hundred quick ones are more than a core does in time. While
stays are short nothing is limited, and however long they are nobody is refused while few ask. Once they have been too long for
a while — which a burst that is worked off is not — as many steps are held at once as are done within the target (Little's
law), more or fewer as stays turn out, and what comes beyond them is refused and told when to come again. Calls that wait to be
accepted count as held. Decision 0039 says why so.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Protocol

from agenttx_server.engine.ports import Clock

__all__ = ["Shedding", "StepStay", "Written"]

COUNTING_SECONDS = 0.02
"""Between two counts of the calls that wait to be accepted."""
COUNTS_A_LOOK = 5
EVERY_SECONDS = COUNTING_SECONDS * COUNTS_A_LOOK
"""Between two looks."""
TIMES_UNLOADED = 4.0
"""A stay that is as many times that of an unloaded server is too long, where that is more than the target."""
STANDING_SECONDS = 0.5
"""So long stays have to be too long before any step is refused: a burst passes."""
STEADY_WEIGHT = 2.5
"""A time in which no less is held than before counts so many times: it is no burst that is worked off."""
CALM_SECONDS = 1.0
"""So long nothing may have been refused before nothing is limited any more."""
ALWAYS_IN_HAND = 4
"""As many are let in whatever the counts say."""
FEW = 8
"""A server that has no more in hand is unloaded."""
RAMP = 0.25
"""So far below the limit the first is refused, and so far above it each."""
LEAST_LIMIT, MOST_LIMIT = 40, 4096
"""With fewer in hand at once commits come singly and less is done."""
BEGINNING_SHARE = 0.75
"""Of the limit: beyond it nothing is begun, so that what is under way comes to its end."""
LONGEST_WITHOUT_BEGINNING_SECONDS = 1.0
LATE_SECONDS = 0.1
"""A loop or a commit that lets one wait so long is behind, whatever is in hand: runs of graphs are no steps."""
LONGEST_STAY_SECONDS = 2.0
"""Who stays longer waits for something that is not counted: for its own first sending, for a lock."""
LEARN_EVERY_SECONDS, LEARNING_SECONDS = 60.0, 0.5
"""A server that has had too much to do for so long takes few in hand for a moment, to see how long a step stays then."""
FORGETTING = 1.02
"""The least that steps stayed is thought to be this much more with every look: another disk, another database."""
LEAST_SHARE = 0.001
SMOOTHING = 0.3
"""Weight of a look beside those before."""
FALL, RISE = 0.8, 1.1
"""Most that the limit changes in one look."""
MOST_STAYS = 2000
"""As many are looked at, of one look."""
RETURNING_SHARE = 0.08
"""Of what is done a second: as many of the refused are told to come again in one."""
FEWEST_RETURNING = 20.0
RETRY_AFTER_SECONDS = (0.25, 10.0)
MOST_TOLD = 4096
"""As many of the refused are counted among those who ask."""
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Written:
    """What waits to be committed, and what has been since the start; in sets of writes."""

    queued: int = 0
    total: float = 0.0


NOTHING_WRITTEN = Written()


class Arriving(Protocol):
    """Counts calls; see :class:`.arrivals.Arrivals`."""

    accepted: int

    def came(self) -> int: ...


class NothingWaits:
    """Every call is accepted as it comes."""

    accepted = 0

    def came(self) -> int:
        return 0


class StepStay:
    """One step, or one beginning, from when it was let in to when it is answered. Implements :class:`.stay.Stay`."""

    __slots__ = ("_outside", "_seconds", "_shedding", "_since", "principal")

    def __init__(self, shedding: Shedding, principal: str, now: float) -> None:
        self._shedding: Shedding | None = shedding
        self._since = now
        self._seconds = 0.0
        self._outside = 0
        self.principal = principal

    def go_out(self) -> None:
        self._outside += 1
        if self._outside == 1 and self._shedding is not None and self._shedding.put_down(self):
            self._seconds += self._shedding.monotonic() - self._since

    def come_back(self) -> None:
        self._outside -= 1
        if not self._outside and self._shedding is not None:
            self._since = self._shedding.monotonic()
            self._shedding.pick_up(self)

    def end(self) -> None:
        """It is answered, or nobody waits for it any more."""
        shedding, self._shedding = self._shedding, None
        if shedding is not None and shedding.put_down(self):
            shedding.note(self._seconds + shedding.monotonic() - self._since)

    def is_longer_than(self, seconds: float, now: float) -> bool:
        """Whether it has been in hand for longer than this without a break."""
        return now - self._since > seconds


class Shedding:
    """What is in hand, how many may be, and who is refused.

    Args:
        target_seconds: How long a step may stay; 0 refuses none.
        monotonic: Time in seconds.
        arrivals: Counts the calls that came and those that were accepted.
        callers: While no more than so many ask at once, no step is refused. Who was told when to come again asks until then.
    """

    def __init__(
        self,
        target_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        arrivals: Arriving | None = None,
        callers: int = 0,
    ) -> None:
        self.monotonic = monotonic
        self._callers = callers
        self._arrivals = arrivals or NothingWaits()
        self.share = 0.0
        """Of what came lately, what was refused; 0 to 1."""
        self.refused = {"step": 0, "beginning": 0}
        """Since the start."""
        self.stay_seconds = 0.0
        """The median of those that ended between the last two looks, and how long a call waits to be accepted."""
        self._least_target = target_seconds
        self._limit: float | None = None
        self._in_hand: dict[StepStay, None] = {}
        self._of_principal: dict[str, int] = {}
        self._stays: list[float] = []
        self._ended = self._let_in = self._refused = 0
        self._most_in_hand = self._held_before = 0
        self._unloaded: float | None = None
        self._came = self._accepted = self._never_accepted = 0
        self._written = 0.0
        self._rate = self._accept_rate = self._write_rate = 0.0
        self._done_lately = self._accepted_lately = 0.0
        self._waiting = 0.0
        self._looked_at = monotonic()
        self._too_long_for = self._calm_for = 0.0
        self._next_beginning = self._first_turn = 0.0
        self._turns: dict[str, float] = {}
        self._told: list[float] = []
        self._spread = self._owed = 0.0
        self._learning_until: float | None = None
        self._learn_again = 0.0

    # --- calls ------------------------------------------------------------------------------

    def enter(self, principal: str) -> StepStay:
        """Take one in hand; whoever does so has to :meth:`StepStay.end` it."""
        stay = StepStay(self, principal, self.monotonic())
        self._let_in += 1
        self.pick_up(stay)
        return stay

    def refuses_step(self, principal: str) -> bool:
        """Whether to refuse the next step of a caller: beyond the limit, twice the limit for a caller who has none in hand.

        So one who sends little is not refused for others who send much.
        """
        if self._limit is None or self._asking <= max(self._callers, ALWAYS_IN_HAND - 1):
            return False
        limit = self._limit_now if principal in self._of_principal else 2 * self._limit_now
        if not self._is_beyond(limit):
            return False
        self._refused += 1
        self.refused["step"] += 1
        return True

    def refuses_beginning(self) -> bool:
        """Whether to refuse the next transaction or run: earlier than steps, but some are always let in."""
        if self._limit is None:
            return False
        if self._waiting <= LATE_SECONDS and (
            self._asking <= self._callers or not self._is_beyond(BEGINNING_SHARE * self._limit_now)
        ):
            return False
        now = self.monotonic()
        if now >= self._next_beginning:
            self._next_beginning = now + min(
                max(self._waiting, EVERY_SECONDS), LONGEST_WITHOUT_BEGINNING_SECONDS
            )
            return False
        self._refused += 1
        self.refused["beginning"] += 1
        return True

    def _is_beyond(self, limit: float) -> bool:
        """Whether the next one is to be refused: of those that come, none well below the limit and all well above it.

        A sharp limit would keep those who come back out: whoever is answered sends its next step into its own place.
        """
        self._owed += min(max((self._held / limit - 1) / (2 * RAMP) + 0.5, 0.0), 1.0)
        if self._owed < 1:
            return False
        self._owed -= 1
        return True

    @property
    def _held(self) -> int:
        return len(self._in_hand) + self.calls_waiting

    @property
    def _asking(self) -> int:
        """How many want something done now: those held, and those who were told to come again and haven't yet."""
        now = self.monotonic()
        while self._told and self._told[0] <= now:
            heapq.heappop(self._told)
        return self._held + len(self._told)

    @property
    def _limit_now(self) -> float:
        assert self._limit is not None
        return self._limit if self._learning_until is None else FEW / (1 + RAMP)

    def retry_after_seconds(self, principal: str) -> float:
        """When the one that is refused now should come again.

        The refused are given turns one after another, no more a second than a share of what is done in one: the more there
        are, the longer the wait. Callers take turns with one another, so that one with few is not told to wait for
        all of another's: each has turns of its own, as far apart as there are callers.
        """
        now = self.monotonic()
        least, most = RETRY_AFTER_SECONDS
        apart = 1 / max(max(self._rate, self._done_lately) * RETURNING_SHARE, FEWEST_RETURNING)
        own = self._turns.get(principal)
        turn = min(max(self._first_turn if own is None else own, now + least), now + most)
        if own is None:
            self._first_turn = turn + apart
        self._turns[principal] = turn + apart * max(len(self._turns), 1)
        self._spread = (self._spread + GOLDEN) % 1
        wait = (turn - now) * (0.75 + self._spread / 2)
        if len(self._told) < MOST_TOLD:
            heapq.heappush(self._told, now + wait)
        return round(wait, 3)

    def pick_up(self, stay: StepStay) -> None:
        """Count a stay as in hand."""
        self._in_hand[stay] = None
        self._of_principal[stay.principal] = self._of_principal.get(stay.principal, 0) + 1
        self._most_in_hand = max(self._most_in_hand, len(self._in_hand))

    def put_down(self, stay: StepStay) -> bool:
        """Count a stay no more; return whether it was counted."""
        if stay not in self._in_hand:
            return False
        del self._in_hand[stay]
        left = self._of_principal[stay.principal] - 1
        if left:
            self._of_principal[stay.principal] = left
        else:
            del self._of_principal[stay.principal]
        return True

    def note(self, seconds: float) -> None:
        """Take note of how long one stayed that has ended."""
        self._ended += 1
        if len(self._stays) < MOST_STAYS:
            self._stays.append(seconds)

    # --- looks ------------------------------------------------------------------------------

    @property
    def in_hand(self) -> int:
        """How many steps and beginnings the server works at, those whose tools run left out."""
        return len(self._in_hand)

    @property
    def calls_waiting(self) -> int:
        """How many calls that had come by the last count are not accepted yet."""
        return max(self._came - self._never_accepted - self._arrivals.accepted, 0)

    @property
    def limit(self) -> int:
        """How many it takes in hand at once now; 0 while nothing is limited."""
        return 0 if self._limit is None else int(self._limit)

    @property
    def target_seconds(self) -> float:
        """How long a step may stay: the target, or four times what it takes an unloaded server, if that is longer."""
        return max(self._least_target, TIMES_UNLOADED * (self._unloaded or 0.0))

    def look(self, late_seconds: float, written: Written = NOTHING_WRITTEN) -> None:
        """Judge what was seen since the last look, and how late the loop was on average meanwhile."""
        now = self.monotonic()
        elapsed = max(now - self._looked_at, COUNTING_SECONDS)
        self._looked_at = now
        self._let_go_of_the_long(now)
        self._measure(late_seconds, written, elapsed)
        stay = median_low(self._stays) if self._stays else self._waiting
        self._learn(stay, now)
        self.stay_seconds = stay + self._seconds_until_accepted()
        if self._least_target:
            self._steer(now, elapsed)
        came = self._let_in + self._refused
        share = self.share + SMOOTHING * ((self._refused / came if came else 0.0) - self.share)
        self.share = share if share >= LEAST_SHARE else 0.0
        self._turns = {principal: turn for principal, turn in self._turns.items() if turn > now}
        self._stays.clear()
        self._ended = self._let_in = self._refused = 0
        self._most_in_hand = len(self._in_hand)

    def _let_go_of_the_long(self, now: float) -> None:
        long = []
        for stay in self._in_hand:  # in the order of being picked up
            if not stay.is_longer_than(LONGEST_STAY_SECONDS, now):
                break
            long.append(stay)
        for stay in long:
            self.put_down(stay)

    def _measure(self, late_seconds: float, written: Written, elapsed: float) -> None:
        def smoothed(before: float, new: float) -> float:
            return before + SMOOTHING * (new - before)

        accepted = self._arrivals.accepted
        self._done_lately = self._ended / elapsed
        self._rate = smoothed(self._rate, self._done_lately)
        self._accepted_lately = (accepted - self._accepted) / elapsed
        self._accept_rate = smoothed(self._accept_rate, self._accepted_lately)
        self._write_rate = smoothed(self._write_rate, (written.total - self._written) / elapsed)
        self._accepted, self._written = accepted, written.total
        behind = written.queued / max(self._write_rate, 1.0) if written.queued > FEW else 0.0
        self._waiting = smoothed(self._waiting, late_seconds + behind)

    def _seconds_until_accepted(self) -> float:
        waiting = self.calls_waiting
        return waiting / max(self._accept_rate, self._accepted_lately, 1.0) if waiting > FEW else 0.0

    def _learn(self, stay: float, now: float) -> None:
        """Keep in mind how long a step stays where few are in hand, and little is refused."""
        busy = self._most_in_hand > FEW or self.calls_waiting > FEW or self._refused > self._let_in
        if self._stays and not busy:
            known = stay if self._unloaded is None else self._unloaded * FORGETTING
            self._unloaded = min(stay, known)
            self._learning_until = None
            self._learn_again = now + LEARN_EVERY_SECONDS

    def _steer(self, now: float, elapsed: float) -> None:
        """Begin to limit, adapt the limit, or end it."""
        target, stay = self.target_seconds, self.stay_seconds
        if self._limit is None:
            held = self._held
            weight = 1.0 if held < self._held_before else STEADY_WEIGHT
            self._held_before = held
            too_long = stay > target and (self._asking > self._callers or self._waiting > LATE_SECONDS)
            self._too_long_for = self._too_long_for + weight * elapsed if too_long else 0.0
            if self._too_long_for >= STANDING_SECONDS:
                self._limit = _within(max(self._rate, self._done_lately) * target)
                self._calm_for = 0.0
            return
        self._calm_for = 0.0 if self._refused else self._calm_for + elapsed
        if self._calm_for >= CALM_SECONDS:
            self._limit = None
            self._too_long_for = 0.0
            self._learning_until = None
        elif self._learning_until is not None:
            if now >= self._learning_until:
                self._learning_until = None
                self._learn_again = now + LEARN_EVERY_SECONDS / 10
        elif now >= self._learn_again:
            self._learning_until = now + LEARNING_SECONDS
        elif stay > target or self._refused:
            # It grows only where it was what held steps back: else it would say nothing when it is needed.
            self._limit = _within(self._limit * min(max((target / max(stay, 1e-6)) ** 0.5, FALL), RISE))

    def count(self, *, idle: bool) -> None:
        """Count the calls that wait to be accepted; ``idle`` is that none can, for the loop was in time and accepted none.

        Some never are accepted, for their callers gave up, and would be counted for ever.
        """
        self._came = self._arrivals.came()
        missing = self._came - self._arrivals.accepted
        if idle or missing < self._never_accepted:
            self._never_accepted = missing

    async def follow(self, clock: Clock, written: Callable[[], Written] = lambda: NOTHING_WRITTEN) -> None:
        """Look again and again until cancelled; ``written`` says what waits for its commit."""
        while True:
            late = 0.0
            for turn in range(COUNTS_A_LOOK):
                accepted, due = self._arrivals.accepted, clock.monotonic() + COUNTING_SECONDS
                await clock.sleep(COUNTING_SECONDS)
                late_now = max(clock.monotonic() - due, 0.0)
                late += late_now / COUNTS_A_LOOK
                idle = accepted == self._arrivals.accepted and late_now < COUNTING_SECONDS
                # Counting costs a tenth of a millisecond: often only where it matters.
                if self._limit is not None or turn == 0 or (idle and self.calls_waiting):
                    self.count(idle=idle)
            self.look(late, written())


def _within(limit: float) -> float:
    return min(max(limit, LEAST_LIMIT), MOST_LIMIT)
