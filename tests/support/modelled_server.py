"""A server as far as shedding sees it, and agents that send it steps, in time that is counted and not waited for.

Calls come, are accepted one by one, are in hand for at least as long as a step takes alone, and are done at the rate of one
processor. Agents send their next step when the last is answered, and one that was refused when it was told to.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from agenttx_server.api.interceptors.shedding import (
    COUNTING_SECONDS,
    COUNTS_A_LOOK,
    Shedding,
    StepStay,
)

TICK = 0.001


@dataclass
class ModelledAgent:
    """One agent. ``waits`` are how long its accepted steps took, from sending to the answer, with when that was."""

    principal: str = "ann"
    pause: float = 0.0
    sent: float = 0.0
    refused: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)


class ModelledServer:
    """``alone`` is how long a step takes of an unloaded server, ``rate`` how many are done a second at most, ``accepts`` how
    many are accepted. A refusal costs a tenth of a step. ``told`` is what the refused were told.
    """

    def __init__(
        self,
        *,
        alone: float = 0.003,
        rate: float = 1900.0,
        accepts: float = 3000.0,
        target: float = 0.02,
        callers: int = 0,
    ) -> None:
        self.now = 0.0
        self.accepted = 0
        self.told: list[float] = []
        self.done = 0
        self.shedding = Shedding(target, lambda: self.now, self, callers)
        self.never_accepted = 0
        self._came = 0
        self._alone, self._rate, self._accepts = alone, rate, accepts
        self._capacity = self._room = 0.0
        self._coming: list[tuple[float, int, ModelledAgent]] = []
        self._waiting: deque[ModelledAgent] = deque()
        self._in_hand: deque[tuple[float, StepStay, ModelledAgent]] = deque()
        self._number = count()
        self._ticks = 0
        self._before = 0

    def came(self) -> int:
        return self._came + self.never_accepted

    def send(self, agent: ModelledAgent, after: float = 0.0) -> None:
        """Have an agent send a step after a time."""
        heapq.heappush(self._coming, (self.now + after, next(self._number), agent))

    def stop(self) -> None:
        """No agent sends any more; what has come is worked off."""
        self._coming.clear()
        for agent in (*self._waiting, *(agent for _, _, agent in self._in_hand)):
            agent.pause = float("inf")

    def run(self, seconds: float) -> None:
        """Let time go by."""
        for _ in range(round(seconds / TICK)):
            self._tick()

    def _tick(self) -> None:
        self.now += TICK
        while self._coming and self._coming[0][0] <= self.now:
            _, _, agent = heapq.heappop(self._coming)
            self._came += 1
            agent.sent = self.now
            self._waiting.append(agent)
        self._capacity = min(self._capacity + self._rate * TICK, 4.0)
        self._room = min(self._room + self._accepts * TICK, 6.0)
        while self._waiting and self._room >= 1:
            self._room -= 1
            self.accepted += 1
            self._take(self._waiting.popleft())
        while self._in_hand and self._capacity >= 1 and self._in_hand[0][0] <= self.now:
            self._capacity -= 1
            _, stay, agent = self._in_hand.popleft()
            stay.end()
            self.done += 1
            agent.waits.append((self.now, self.now - agent.sent))
            if agent.pause != float("inf"):
                self.send(agent, agent.pause)
        self._look()

    def _take(self, agent: ModelledAgent) -> None:
        if self.shedding.refuses_step(agent.principal):
            self._capacity -= 0.1
            agent.refused += 1
            wait = self.shedding.retry_after_seconds(agent.principal)
            self.told.append(wait)
            if agent.pause != float("inf"):
                self.send(agent, wait)
        else:
            self._in_hand.append((self.now + self._alone, self.shedding.enter(agent.principal), agent))

    def _look(self) -> None:
        self._ticks += 1
        if self._ticks % round(COUNTING_SECONDS / TICK):
            return
        self.shedding.count(idle=self.accepted == self._before)
        self._before = self.accepted
        if self._ticks % round(COUNTS_A_LOOK * COUNTING_SECONDS / TICK) == 0:
            self.shedding.look(0.0)
