"""Raw errors as real software prints them, with what a hint about each must say.

One JSON object a line in ``<family>.jsonl``: id, rule (the rule that must match, null for
the fallback), raw, category, key (null for none), must_mention; optionally also_accept_categories,
also_accept_keys and must_not_mention.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ErrorSample", "error_samples"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class ErrorSample:
    family: str
    id: str
    rule: str | None
    raw: str
    categories: frozenset[str]
    keys: frozenset[str | None]
    must_mention: tuple[str, ...]
    must_not_mention: tuple[str, ...]


@cache
def error_samples() -> tuple[ErrorSample, ...]:
    """Every sample, in the order of families and lines."""
    samples = []
    for path in sorted(_FOLDER.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            samples.append(
                ErrorSample(
                    family=path.stem,
                    id=entry["id"],
                    rule=entry["rule"],
                    raw=entry["raw"],
                    categories=frozenset((entry["category"], *entry.get("also_accept_categories", ()))),
                    keys=frozenset((entry["key"], *entry.get("also_accept_keys", ()))),
                    must_mention=tuple(entry["must_mention"]),
                    must_not_mention=tuple(entry.get("must_not_mention", ())),
                )
            )
    return tuple(samples)
