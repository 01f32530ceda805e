"""One look at all members that stand says what comparing each pair says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.engine.records import StateRead, StateWrite
from agenttx_server.engine.standing_members import MemberUse, StandingMembers, uses_by_step
from agenttx_server.engine.touches import touch_row

_KEYS = st.sampled_from(["kv/a", "kv/ab", "kv/b", "kv/", "a", "ab", "b/c"])
_PATHS = st.sampled_from(["file", "file/a", "file/a/b", "file/ab", "file/c", "host/a"])
_NOTHING = MemberUse()


@st.composite
def members(draw: st.DrawFn) -> dict[int, MemberUse]:
    reads: list[StateRead] = []
    writes: list[StateWrite] = []
    for step in range(1, draw(st.integers(2, 6)) + 1):
        for key in draw(st.lists(_KEYS, max_size=2)):
            reads.append(StateRead(step, key, 0, is_prefix=draw(st.booleans())))
        for key in draw(st.lists(_KEYS, max_size=1)):
            writes.append(StateWrite(step, 1, key, "1"))
        for path in draw(st.lists(_PATHS, max_size=1)):
            reads.append(touch_row(step, path, writes=draw(st.booleans())))
    return uses_by_step(reads, writes)


@given(members())
def test_a_member_clashes_with_the_lowest_one_that_it_would_clash_with_alone(
    uses: dict[int, MemberUse],
) -> None:
    together = StandingMembers()
    apart: list[tuple[int, MemberUse]] = []
    for step in range(1, 7):
        use = uses.get(step, _NOTHING)
        pairs = ((lower, use.conflict(other)) for lower, other in apart)
        expected = next(((lower, key) for lower, key in pairs if key is not None), None)
        assert together.clash(use) == expected
        if expected is None:
            together.add(step, use)
            apart.append((step, use))
