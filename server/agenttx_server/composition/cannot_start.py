"""Why nothing is served."""

from __future__ import annotations

__all__ = ["CannotStart"]


class CannotStart(Exception):
    """What was asked for can't be served; the message is one line for whoever started the server."""
