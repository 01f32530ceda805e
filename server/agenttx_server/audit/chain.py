"""Entries of the trail and the chain that holds them together.

The hash of an entry is SHA-256 over the hash of the one before (the empty text for the first) and its own fields, as canonical
JSON. So an entry that was changed, taken out, put in or moved breaks the chain where it stands. Who can write the
table can still cut off the newest entries, or write all hashes anew: that shows against a head that was noted elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

__all__ = ["AuditEntry", "BrokenChain", "ChainCheck", "Deed", "Head", "chained"]

_HASH_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that was done, before it has its place in a chain.

    Attributes:
        occurred_at: When, in microseconds UTC, by the clock of the server.
        actor: Who did it (audit.actor).
        owner: Whose it was done to: a principal, empty where it is nobody's.
        action: What was done, such as ``transaction.commit``.
        subject: What it was done to: the id of a transaction, run, thread, token.
        detail: More of it, as canonical JSON; never a payload, a reason in words or anything else that could be a secret.
    """

    occurred_at: int
    actor: str
    owner: str
    action: str
    subject: str
    detail: str = "{}"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A deed in its place: ``sequence`` counts from 1 without gaps in its ``chain``."""

    chain: int
    sequence: int
    deed: Deed
    hash: str

    def as_json(self) -> dict[str, Any]:
        """Return it as a line of the export."""
        return {
            "chain": self.chain,
            "sequence": self.sequence,
            "occurred_at": self.deed.occurred_at,
            "actor": self.deed.actor,
            "owner": self.deed.owner,
            "action": self.deed.action,
            "subject": self.deed.subject,
            "detail": orjson.loads(self.deed.detail),
            "hash": self.hash,
        }

    @classmethod
    def from_json(cls, line: bytes | str) -> AuditEntry:
        """Read a line of an export. Raises ValueError for what is none."""
        try:
            told = orjson.loads(line)
            deed = Deed(
                occurred_at=int(told["occurred_at"]),
                actor=str(told["actor"]),
                owner=str(told["owner"]),
                action=str(told["action"]),
                subject=str(told["subject"]),
                detail=orjson.dumps(told["detail"], option=orjson.OPT_SORT_KEYS).decode(),
            )
            return cls(int(told["chain"]), int(told["sequence"]), deed, str(told["hash"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no line of an audit export: {error}") from error


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry of a chain, which stands for all before it. Its text is ``CHAIN:SEQUENCE:HASH``."""

    chain: int
    sequence: int = 0
    hash: str = ""

    def __str__(self) -> str:
        return f"{self.chain}:{self.sequence}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read the text of one. Raises ValueError."""
        parts = text.split(":")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts[:2]):
            raise ValueError(
                f"{text!r} is no head of a chain; it is CHAIN:SEQUENCE:HASH, as verify prints it"
            )
        if len(parts[2]) != _HASH_CHARACTERS:
            raise ValueError(f"{text!r}: a hash has {_HASH_CHARACTERS} characters")
        return cls(int(parts[0]), int(parts[1]), parts[2].lower())


def chained(head: Head, deeds: Sequence[Deed]) -> list[AuditEntry]:
    """Return deeds as the entries that follow a head."""
    entries = []
    for deed in deeds:
        sequence = head.sequence + 1
        entry = AuditEntry(head.chain, sequence, deed, _hash(head.hash, head.chain, sequence, deed))
        entries.append(entry)
        head = Head(head.chain, sequence, entry.hash)
    return entries


def _hash(before: str, chain: int, sequence: int, deed: Deed) -> str:
    fields = (
        before,
        chain,
        sequence,
        deed.occurred_at,
        deed.actor,
        deed.owner,
        deed.action,
        deed.subject,
        deed.detail,
    )
    return hashlib.sha256(orjson.dumps(fields)).hexdigest()


@dataclass(frozen=True, slots=True)
class BrokenChain:
    """Where a chain breaks first, and what is wrong there."""

    chain: int
    sequence: int
    problem: str

    def __str__(self) -> str:
        return f"chain {self.chain} is broken at entry {self.sequence}: {self.problem}"


class ChainCheck:
    """Goes over entries, chain by chain and in order of their sequence, and finds the first break of each.

    ``noted`` are heads noted before: their entries must be there, as they were.
    """

    def __init__(self, noted: Sequence[Head] = ()) -> None:
        self._noted = {(head.chain, head.sequence): head for head in noted}
        self.heads: dict[int, Head] = {}
        self.broken: dict[int, BrokenChain] = {}
        self.entries = 0

    def take(self, entry: AuditEntry) -> None:
        """Look at the next entry."""
        self.entries += 1
        chain, sequence = entry.chain, entry.sequence
        if chain in self.broken:
            return
        head = self.heads.get(chain, Head(chain))
        noted = self._noted.pop((chain, sequence), None)
        problem = ""
        if sequence != head.sequence + 1:
            problem = (
                f"entries {head.sequence + 1} to {sequence - 1} are missing"
                if sequence > head.sequence
                else f"it stands behind entry {head.sequence}"
            )
        elif entry.hash != _hash(head.hash, chain, sequence, entry.deed):
            problem = "its hash is not that of its fields and the entry before"
        elif noted is not None and noted.hash != entry.hash:
            problem = "the chain was written anew: the head that was noted here had another hash"
        if problem:
            self.broken[chain] = BrokenChain(chain, sequence, problem)
        else:
            self.heads[chain] = replace(head, sequence=sequence, hash=entry.hash)

    def end(self) -> list[BrokenChain]:
        """Return all breaks, by chain, once there are no more entries."""
        for head in sorted(self._noted.values(), key=lambda head: (head.chain, head.sequence)):
            if head.chain not in self.broken:
                last = self.heads.get(head.chain, Head(head.chain)).sequence
                self.broken[head.chain] = BrokenChain(
                    head.chain, last + 1, f"it ends before the head that was noted, entry {head.sequence}"
                )
        return [self.broken[chain] for chain in sorted(self.broken)]
