"""The trail in parts: what a check in pages finds is what a check of the whole finds, wherever pages end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.audit.chain import AuditEntry, ChainCheck, Deed, Head, chained
from agenttx_server.audit.reading import AuditFilter, check_part


def trail(lengths: Sequence[int]) -> list[AuditEntry]:
    return [
        entry
        for chain, length in enumerate(lengths)
        for entry in chained(
            Head(chain), [Deed(at, "ann", "ann", "transaction.begin", f"t-{at}") for at in range(length)]
        )
    ]


def whole(entries: Sequence[AuditEntry], noted: Sequence[Head]) -> tuple[dict[int, int], dict[int, Head]]:
    check = ChainCheck(noted)
    for entry in entries:
        check.take(entry)
    broken = {one.chain: one.sequence for one in check.end()}
    return broken, {chain: head for chain, head in check.heads.items() if chain not in broken}


def in_parts(
    entries: Sequence[AuditEntry], noted: Sequence[Head], size: int
) -> tuple[dict[int, int], dict[int, Head]]:
    broken: dict[int, int] = {}
    heads: dict[int, Head] = {}
    behind: Head | None = None
    while True:
        place = (-1, 0) if behind is None else (behind.chain, behind.sequence)
        page = [entry for entry in entries if (entry.chain, entry.sequence) > place][:size]
        part = check_part(page, behind, noted, is_last=len(page) < size)
        for one in part.broken:
            broken.setdefault(one.chain, one.sequence)
        heads |= {head.chain: head for head in part.heads}
        if part.goes_on is None:
            return broken, {chain: head for chain, head in heads.items() if chain not in broken}
        behind = part.goes_on


@given(st.data())
def test_in_parts_is_found_what_is_found_in_the_whole(data: st.DataObject):
    entries = trail(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    # Heads that were noted are of the trail as it was, or of what never was there.
    kept = data.draw(st.lists(st.sampled_from(entries), max_size=3, unique=True))
    noted = [Head(entry.chain, entry.sequence, entry.hash) for entry in kept]
    if data.draw(st.booleans()):
        noted.append(Head(data.draw(st.integers(0, 5)), 9, "a" * 64))
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.integers(0, len(entries) - 1))
        if data.draw(st.booleans()) and len(entries) > 1:
            entries = entries[:place] + entries[place + 1 :]
        else:
            bent = replace(entries[place].deed, actor="eve")
            entries = [*entries[:place], replace(entries[place], deed=bent), *entries[place + 1 :]]
    expected = whole(entries, noted)
    for size in (1, 2, 3, 100):
        assert in_parts(entries, noted, size) == expected, size


def test_an_entry_is_its_owners_tenants_and_of_what_is_nobodys_its_actors():
    def entry(actor: str, owner: str) -> AuditEntry:
        return AuditEntry(0, 1, Deed(5, actor, owner, "run.start", "r"), "")

    default, acme = AuditFilter("@/"), AuditFilter("@acme/")
    for which, actor, owner, is_told in (
        (default, "olga", "ann", True),
        (default, "server", "@acme/amy", False),
        (acme, "server", "@acme/amy", True),
        (acme, "local:root", "@acme/amy", True),
        (acme, "@acme/amy", "", True),
        (default, "@acme/amy", "", False),
        (acme, "local:root", "", False),
        (AuditFilter("@acm/"), "@acme/amy", "@acme/amy", False),
        (AuditFilter("ann"), "ann", "ann", True),
        (AuditFilter("ann"), "olga", "bob", False),
        (replace(default, action="run."), "ann", "ann", True),
        (replace(default, action="run"), "ann", "ann", False),
        (replace(default, since=6), "ann", "ann", False),
        (replace(default, until=5), "ann", "ann", False),
        (replace(default, since=5, until=6), "ann", "ann", True),
    ):
        assert which.takes(entry(actor, owner)) is is_told, (which, actor, owner)
