"""What can be seen from outside of what an agent did: files, staged mails, the outbox."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agenttx import Client


@dataclass(frozen=True)
class Surroundings:
    """How things are at a moment.

    Attributes:
        paths: The directories and files of the sandbox, by their paths; a directory's text is empty.
        staged: How many effects wait for the commit.
        delivered: What the outbox file holds: an object for each delivered effect.
    """

    paths: dict[str, str]
    staged: int
    delivered: list[dict[str, Any]]


def look_around(client: Client, transaction_id: str, folder: Path) -> Surroundings:
    """Look at the disk for what is on disk, and ask the server for what is its own."""
    sandbox, outbox = folder / "sandbox", folder / "outbox.jsonl"
    return Surroundings(
        paths={
            str(path.relative_to(sandbox)): path.read_text() if path.is_file() else ""
            for path in sorted(sandbox.rglob("*"))
            if not path.name.startswith(".")
        },
        staged=client.get_transaction(transaction_id).pending_effects,
        delivered=[json.loads(line) for line in outbox.read_text().splitlines()] if outbox.exists() else [],
    )
