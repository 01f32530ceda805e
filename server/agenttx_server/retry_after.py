"""Retry-After: how long a service asks to be left alone."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

__all__ = ["MOST_PATIENCE_SECONDS", "retry_after_seconds"]

# A receiver may ask for this much patience, whatever it writes into Retry-After.
MOST_PATIENCE_SECONDS = 3600.0


def retry_after_seconds(header: str, now: float) -> float | None:
    """Read a Retry-After header (RFC 9110, 10.2.3): seconds or a date; None if it says nothing that can be read.

    Returns:
        Seconds from ``now`` (a Unix time), 0 to an hour.
    """
    text = header.strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:12])
    else:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), MOST_PATIENCE_SECONDS)
