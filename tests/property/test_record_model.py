"""record.* against a naive model: after any sequence of calls both accept the same, and hold the same rows."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_tool_context import FakeTransaction

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin.record import RECORD_TOOLS
from agenttx_server.tools.builtin.record_errors import ForeignKeyViolation, NotNullViolation, UniqueViolation

TOOLS = ToolRegistry(RECORD_TOOLS)
REFUSALS = (ToolFailure, ForeignKeyViolation, NotNullViolation, UniqueViolation)

tables = st.sampled_from(["a", "b"])
ids = st.sampled_from([1, "1", "x/y", "x"])
parents = st.one_of(st.none(), ids)
calls = st.one_of(
    st.tuples(st.just("insert"), tables, st.one_of(ids, st.none()), tables, parents),
    st.tuples(st.just("update"), tables, ids, tables, parents),
    st.tuples(st.just("delete"), tables, ids, tables, parents),
)


class Model:
    """Tables as dictionaries; every check looks at every row."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.parent_tables: dict[tuple[str, str], str] = {}

    def apply(self, name: str, table: str, identity: Any, parent_table: str, parent: Any) -> bool:
        """Make the change if it is allowed; say whether it was."""
        key = (table, repr(identity))
        if name == "delete":
            others = [row for row in self.rows if row != key]
            if key not in self.rows or any(self.parent(row) == key for row in others):
                return False
            del self.rows[key]
            return True
        if (key in self.rows) == (name == "insert") or identity is None:
            return False
        target_table = parent_table if name == "insert" else self.parent_tables[key]
        target = (target_table, repr(parent))
        if parent is not None and target != key and target not in self.rows:
            return False
        self.rows[key] = {"id": identity, "parent": parent}
        self.parent_tables[key] = target_table
        return True

    def parent(self, key: tuple[str, str]) -> tuple[str, str] | None:
        parent = self.rows[key]["parent"]
        return None if parent is None else (self.parent_tables[key], repr(parent))


async def call(
    transaction: FakeTransaction, name: str, table: str, identity: Any, parent_table: str, parent: Any
) -> bool:
    arguments: dict[str, Any] = {"table": table}
    if name == "insert":
        arguments |= {"record": {"id": identity, "parent": parent}, "references": {"parent": parent_table}}
    elif name == "update":
        arguments |= {"id": identity, "changes": {"parent": parent}}
    else:
        arguments |= {"id": identity}
    before = dict(transaction.state)
    try:
        await TOOLS.run(f"record.{name}", arguments, transaction.context())
    except REFUSALS:
        transaction.state.clear()  # a failed step leaves nothing
        transaction.state.update(before)
        return False
    return True


@given(st.lists(calls, max_size=25))
def test_rows_and_refusals_are_those_of_a_naive_model(sequence):
    async def play() -> None:
        transaction, model = FakeTransaction(), Model()
        for one in sequence:
            assert await call(transaction, *one) == model.apply(*one), one
        rows = [
            json.loads(value)["record"]
            for key, value in transaction.state.items()
            if key.startswith("record/")
        ]
        assert sorted(rows, key=repr) == sorted(model.rows.values(), key=repr)
        references = [key for key in transaction.state if key.startswith("record-ref/")]
        assert len(references) == sum(model.parent(key) is not None for key in model.rows)

    asyncio.run(play())
