"""Bounds how many calls are served at once, and lets none in while draining."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from agenttx_server.api.interceptors.call import CallClass, RpcCall
from agenttx_server.api.interceptors.shedding import Shedding, StepStay
from agenttx_server.engine.errors import LimitExceeded, Unavailable
from agenttx_server.engine.visibility import tenant_of
from agenttx_server.stay import stays

__all__ = ["Admission", "TooManyCalls", "take_step"]

RETRY_AFTER_SECONDS = 1.0
# What begins new work. What ends or undoes some, or looks at it, is never refused for the server's being behind; the steps
# of a stream are let in one by one (StepStream).
BEGINNINGS = frozenset({"BeginTransaction", "StartRun", "StreamRun", "RunPipeline"})
_WHOSE = {"principal": "yours", "tenant": "your tenant's"}


class TooManyCalls(LimitExceeded):
    """As many calls of this class as the server serves at once are being served, or it is behind with those it has."""

    def __init__(
        self,
        message: str,
        *,
        metadata: Mapping[str, str],
        retry_after_seconds: float = RETRY_AFTER_SECONDS,
    ) -> None:
        super().__init__(message, reason="OVERLOADED", metadata=metadata)
        self.retry_after_seconds = retry_after_seconds


def take_step(shedding: Shedding, principal: str) -> StepStay:
    """Take a step of a caller in hand, for the task that asks; raise TooManyCalls if the server is behind."""
    if shedding.refuses_step(principal):
        raise _behind(shedding, principal)
    stay = shedding.enter(principal)
    stays(stay)
    return stay


def _behind(shedding: Shedding, principal: str) -> TooManyCalls:
    return TooManyCalls(
        "the server has more work than it can do in time",
        metadata={"share_refused": f"{shedding.share:.2f}"},
        retry_after_seconds=shedding.retry_after_seconds(principal),
    )


class Admission:
    """Counts the calls of each class against its bound.

    ``principal_bounds`` are those of one caller, for classes that have one, and ``tenant_bounds`` those of a tenant (0 is none):
    nobody takes every place alone. ``shedding`` says what is refused because the server is behind.
    Refusing at once, with a hint when to come again, keeps a busy server answering: a queue here
    would only hold calls until their callers have given up. Health checks are exempt from both
    the bounds and the draining.
    """

    name = "admission"

    def __init__(
        self,
        bounds: Mapping[CallClass, int],
        principal_bounds: Mapping[CallClass, int] | None = None,
        shedding: Shedding | None = None,
        tenant_bounds: Callable[[str], Mapping[CallClass, int]] | None = None,
    ) -> None:
        self.shedding = shedding or Shedding(0)
        self._bounds = dict(bounds)
        self._principal_bounds = {kind: bound for kind, bound in (principal_bounds or {}).items() if bound}
        self._tenant_bounds = tenant_bounds
        self._taken: dict[tuple[CallClass, str, str], int] = {}
        self._active = dict.fromkeys(CallClass, 0)
        self._draining = False
        self._nothing_in_flight = asyncio.Event()
        self._nothing_in_flight.set()

    def enter(self, call: RpcCall) -> None:
        call_class = call.method.call_class
        if call_class is CallClass.EXEMPT:
            return
        if self._draining:
            raise Unavailable(
                "the server is shutting down; send the call to another one, or to this one again later",
                reason="DRAINING",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        active = self._active[call_class]
        if active >= self._bounds[call_class]:
            raise TooManyCalls(
                f"{active} calls of this class are being served, as many as may be at once",
                metadata={"class": call_class.name, "limit": str(self._bounds[call_class])},
            )
        places = self._places(call)
        for place, bound in places:
            _, of, _ = place
            taken = self._taken.get(place, 0)
            if taken >= bound:
                raise TooManyCalls(
                    f"{taken} calls of {_WHOSE[of]} of this class are being served, as many as may be at once",
                    metadata={"class": call_class.name, "limit": str(bound), "of": of},
                )
        # Last: what is refused for its bounds is no sign of a server that is behind.
        if call_class is CallClass.STEP:
            call.stay = take_step(self.shedding, call.principal)
        elif call.method.label in BEGINNINGS:
            if self.shedding.refuses_beginning():
                raise _behind(self.shedding, call.principal)
            # The others last as long as a run, and wait for nodes and agents.
            if call.method.label == "BeginTransaction":
                call.stay = self.shedding.enter(call.principal)
        for place, _ in places:
            self._taken[place] = self._taken.get(place, 0) + 1
        self._active[call_class] = active + 1
        self._nothing_in_flight.clear()
        call.in_flight = True

    def leave(self, call: RpcCall) -> None:
        if not call.in_flight:
            return
        if call.stay is not None:
            call.stay.end()
        call_class = call.method.call_class
        self._active[call_class] -= 1
        for place, _ in self._places(call):
            self._taken[place] -= 1
            if not self._taken[place]:
                del self._taken[place]
        if self._draining and not self.in_flight:
            self._nothing_in_flight.set()

    def _places(self, call: RpcCall) -> Sequence[tuple[tuple[CallClass, str, str], int]]:
        """Return what the call takes a place of, and how many there are: of its principal, of its tenant."""
        call_class = call.method.call_class
        bound = self._principal_bounds.get(call_class, 0)
        if not bound and self._tenant_bounds is None:
            return ()
        places = [((call_class, "principal", call.principal), bound)] if bound else []
        if self._tenant_bounds is not None:
            tenant = tenant_of(call.principal)
            of_tenant = self._tenant_bounds(tenant).get(call_class, 0)
            if of_tenant:
                places.append(((call_class, "tenant", tenant), of_tenant))
        return places

    @property
    def load(self) -> dict[str, tuple[int, int]]:
        """The calls that are being served of each class that has a bound, and the bound."""
        return {kind.name: (self._active[kind], bound) for kind, bound in self._bounds.items()}

    @property
    def in_flight(self) -> int:
        """How many calls are being served, health checks left out."""
        return sum(self._active.values())

    def begin_drain(self) -> None:
        """Refuse new calls from now on with UNAVAILABLE."""
        self._draining = True
        if not self.in_flight:
            self._nothing_in_flight.set()

    async def drained(self) -> None:
        """Return when no call is being served any more; only after :meth:`begin_drain`."""
        await self._nothing_in_flight.wait()
