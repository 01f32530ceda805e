"""Times and durations as people read them: how long ago, and when exactly (UTC)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["ago", "clock_time", "duration", "moment", "took"]

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def moment(time: datetime | None, now: datetime) -> str:
    """Return ``2026-07-03 14:03:12Z (2 min ago)``; a dash for no time."""
    if time is None:
        return "–"
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%SZ} ({ago(time, now)})"


def clock_time(time: datetime | None) -> str:
    """Return the time of day to the millisecond, for lines that follow one another."""
    if time is None:
        return "--:--:--.---"
    time = time.astimezone(UTC)
    return f"{time:%H:%M:%S}.{time.microsecond // 1000:03}"


def ago(time: datetime, now: datetime) -> str:
    """Return ``just now``, ``2 min ago`` or, for what is to come, ``in 2 min``."""
    seconds = (now - time).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    return f"{_roughly(seconds, 1)} ago" if seconds > 0 else f"in {_roughly(-seconds, 1)}"


def took(started: datetime | None, ended: datetime | None) -> str:
    """Return how long something took; a dash where that isn't known."""
    if started is None or ended is None:
        return "–"
    return duration((ended - started) / timedelta(seconds=1))


def duration(seconds: float) -> str:
    """Return ``0.4 ms``, ``12 ms``, ``1.5 s`` or ``3 min``."""
    if seconds < 0.01:
        return f"{max(seconds, 0.0) * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    return _roughly(seconds, 2)


def _roughly(seconds: float, units: int) -> str:
    """Return the largest units: ``2 h 5 min``, or ``2 h`` for one unit."""
    rest = int(seconds)
    parts: list[str] = []
    for name, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {name}")
        if parts and (not count or len(parts) == units):
            break
    return " ".join(parts) or "0 s"
