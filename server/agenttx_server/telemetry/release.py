"""Which release this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["release"]


def release() -> str:
    """Return the installed release's version."""
    try:
        return version("agenttx")
    except PackageNotFoundError:  # run from its sources
        return "unknown"
