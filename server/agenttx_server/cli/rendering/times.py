"""Times and durations as people read them: how long ago, and when exactly (UTC)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["age", "ago", "clock_time", "date_and_time", "duration", "moment", "took"]

_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def moment(time: datetime | None, now: datetime) -> str:
    """Return ``2026-07-03 14:03:12Z (2 min ago)``; a dash for no time."""
    if time is None:
        return "–"
    return f"{date_and_time(time)} ({ago(time, now)})"


def date_and_time(time: datetime | None) -> str:
    """Return ``2026-07-03 14:03:12Z``; a dash for no time."""
    return "–" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def age(time: datetime | None, now: datetime) -> str:
    """Return how long ago it was, as ``2 min``; a dash for no time."""
    return "–" if time is None else _roughly(max((now - time).total_seconds(), 0.0))


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
    return f"{_roughly(seconds)} ago" if seconds > 0 else f"in {_roughly(-seconds)}"


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
    return _roughly(seconds)


def _roughly(seconds: float) -> str:
    """Return the two largest units: ``2 h 5 min``."""
    rest = int(seconds)
    parts = []
    for name, size in _UNITS:
        count, rest = divmod(rest, int(size))
        if count:
            parts.append(f"{count} {name}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or "0 s"
