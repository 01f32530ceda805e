"""What members of a group touched outside the state: files and the like, named by keys such as ``file/a/b``.

Keys are paths. One that is touched stands for all beneath it, so that listing or moving a
directory meets a write of any file in it. A touch is kept as a row beside the keys that
were read, with version 0 and under a first part that no state key can have: it is durable
with the member's outcome, survives a crash of the server until the group is settled, goes
with a rewind and is never published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records import StateRead

__all__ = ["Touched", "fitted", "itself_and_above", "read_of_state", "state_touch", "touch_row", "touched_by"]

# A namespace of state has none of these characters but letters.
_READ = "~read/"
_WRITTEN = "~write/"
# No path of outside things begins so.
_STATE = "~state/"


def touch_row(step_id: int, key: str, *, writes: bool, sub_step: int = 0) -> StateRead:
    """Return the row that keeps a touch."""
    return StateRead(step_id, (_WRITTEN if writes else _READ) + key, 0, sub_step=sub_step)


def state_touch(key: str) -> str:
    """Return the touch of a key of the state that a sub-step read from what its own step had written.

    It is no read of committed state, which the commit would check, and yet what siblings of the sub-step may disturb.
    """
    return _STATE + key


def read_of_state(read: StateRead) -> StateRead:
    """Return a row with :func:`state_touch` as the read that it stands for, any other as it is."""
    if not read.key.startswith(_READ + _STATE):
        return read
    return StateRead(read.step_id, read.key.removeprefix(_READ + _STATE), 0, sub_step=read.sub_step)


def fitted(key: str, most_bytes: int) -> str:
    """Return a key that fits: one that is too long stands for the longest path above it that does.

    What is touched then is more than was asked for, never less. A key without such a path stays as it is.
    """
    encoded = key.encode("utf-8", "surrogatepass")
    if len(encoded) <= most_bytes:
        return key
    above = encoded[: most_bytes + 1].rpartition(b"/")[0]
    return above.decode("utf-8", "surrogatepass") or key


@dataclass(frozen=True, slots=True)
class Touched:
    """The keys that one member touched; ``written`` are among them."""

    touched: frozenset[str]
    written: frozenset[str]

    def conflict(self, other: Touched) -> str | None:
        """Return a key that one side wrote and the other touched, itself or by a path above it."""
        clashes = {*_meetings(self.written, other.touched), *_meetings(other.written, self.touched)}
        return min(clashes) if clashes else None

    def disturbs(self, other: Touched) -> bool:
        """Whether this side's writes may have changed what the other one met."""
        return next(_meetings(self.written, other.touched), None) is not None


def touched_by(reads: Iterable[StateRead]) -> Touched:
    """Pick the touches out of a member's rows."""
    touched = set()
    written = set()
    for read in reads:
        if read.key.startswith(_WRITTEN):
            written.add(read.key.removeprefix(_WRITTEN))
        elif read.key.startswith(_READ):
            touched.add(read.key.removeprefix(_READ))
    return Touched(frozenset(touched | written), frozenset(written))


def _meetings(written: frozenset[str], touched: frozenset[str]) -> Iterator[str]:
    """Give the lower key of each pair of which one is the other or a path above it."""
    yield from (key for key in written if any(path in touched for path in itself_and_above(key)))
    yield from (key for key in touched if any(path in written for path in itself_and_above(key)))


def itself_and_above(key: str) -> Iterator[str]:
    """Give a path and all that it lies beneath, the nearest first."""
    while key:
        yield key
        key = key.rpartition("/")[0]
