"""Time, ids and randomness of the real system, behind the engine's ports."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import uuid

from agenttx_server.engine.records import MicrosecondsUtc

__all__ = ["SystemClock", "SystemIds"]


class SystemClock:
    """The machine's clocks."""

    def now(self) -> MicrosecondsUtc:
        """Return the time of day as microseconds since 1970, UTC."""
        return MicrosecondsUtc(time.time_ns() // 1000)

    def monotonic(self) -> float:
        """Return seconds from some moment, never going back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let others run for a while."""
        await asyncio.sleep(seconds)


class SystemIds:
    """UUIDv7 (RFC 9562), each greater than the one before it, from any thread.

    Bits: 48 of milliseconds, 4 of version, 12 + 62 of a number (with 2 of variant between)
    that begins at random in each new millisecond and grows by a random step within it (the
    RFC's method 2), so ids can't be guessed from their neighbours. A clock that goes back
    is not followed: ids go on counting in the latest millisecond seen.
    """

    _RANDOM_BITS = 74
    _LARGEST_STEP = 1 << 32

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millisecond = 0
        self._number = 0
        self._jitter = random.SystemRandom()

    def new_id(self) -> str:
        """Return a new id in the usual form of a UUID."""
        entropy = int.from_bytes(os.urandom(10), "big")
        with self._lock:
            millisecond = time.time_ns() // 1_000_000
            if millisecond > self._millisecond:
                self._millisecond = millisecond
                # The top bit stays free, so that counting on within a millisecond hardly ever overflows.
                self._number = entropy >> (80 - self._RANDOM_BITS + 1)
            else:
                self._number += 1 + entropy % self._LARGEST_STEP
                if self._number >> self._RANDOM_BITS:
                    self._millisecond += 1
                    self._number = entropy >> (80 - self._RANDOM_BITS + 1)
            millisecond, number = self._millisecond, self._number
        value = millisecond << 80 | 0x7 << 76 | (number >> 62) << 64 | 0b10 << 62 | number & ((1 << 62) - 1)
        return str(uuid.UUID(int=value))

    def random(self) -> float:
        """Return a number in [0, 1), for jitter."""
        return self._jitter.random()
