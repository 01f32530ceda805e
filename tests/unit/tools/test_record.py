import json
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction

from agenttx_server.engine import hints
from agenttx_server.engine.ports import ArgumentsRefused, ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin.record import MAX_ID_BYTES, RECORD_TOOLS
from agenttx_server.tools.builtin.record_errors import (
    ForeignKeyViolation,
    InvalidForeignKey,
    NotNullViolation,
    UniqueViolation,
)

TOOLS = ToolRegistry(RECORD_TOOLS)
ORDER = {"id": "o-1", "customer_id": "c-1", "total": 5}
TO_CUSTOMERS = {"customer_id": "customers"}


@pytest.fixture
def transaction() -> FakeTransaction:
    return FakeTransaction()


async def run(transaction: FakeTransaction, name: str, **arguments: Any) -> Any:
    return await TOOLS.run(f"record.{name}", arguments, transaction.context())


async def insert_customer_and_order(transaction: FakeTransaction) -> None:
    await run(transaction, "insert", table="customers", record={"id": "c-1", "name": "Ada"})
    await run(transaction, "insert", table="orders", record=ORDER, references=TO_CUSTOMERS)


async def test_a_row_is_inserted_read_updated_and_deleted_and_each_answer_is_the_row(transaction):
    row = {"id": "c-1", "name": "Ada"}
    assert await run(transaction, "insert", table="customers", record=row) == row
    assert await run(transaction, "get", table="customers", id="c-1") == row

    changed = {"id": "c-1", "name": None, "age": 36}
    assert (
        await run(transaction, "update", table="customers", id="c-1", changes={"name": None, "age": 36})
        == changed
    )
    assert await run(transaction, "get", table="customers", id="c-1") == changed

    assert await run(transaction, "delete", table="customers", id="c-1") == changed
    assert transaction.state == {}


async def test_the_number_and_the_text_of_one_look_are_two_keys(transaction):
    await run(transaction, "insert", table="t", record={"id": 1, "is": "number"})
    await run(transaction, "insert", table="t", record={"id": "1", "is": "text"})

    assert (await run(transaction, "get", table="t", id=1))["is"] == "number"
    assert (await run(transaction, "get", table="t", id="1"))["is"] == "text"


@pytest.mark.parametrize(
    "identity", ["", "a/b", "%2F", "a%2Fb", "é", " ", 0, -1, 2**64 - 1, "x" * MAX_ID_BYTES]
)
async def test_ids_of_all_kinds_are_keys(transaction, identity):
    await run(transaction, "insert", table="t", record={"id": identity})
    await run(transaction, "insert", table="u", record={"id": 1, "t": identity}, references={"t": "t"})

    assert await run(transaction, "get", table="t", id=identity) == {"id": identity}
    with pytest.raises(ForeignKeyViolation):
        await run(transaction, "delete", table="t", id=identity)
    assert all(len(key.encode()) <= 1024 for key in transaction.state)


async def test_ids_that_look_alike_when_escaped_do_not_meet(transaction):
    for identity in ("a/b", "a%2Fb", "a%252Fb"):
        await run(transaction, "insert", table="t", record={"id": identity})

    assert len(transaction.state) == 3


async def test_a_taken_primary_key_is_refused_in_postgresqls_words(transaction):
    await run(transaction, "insert", table="customers", record={"id": "c-1"})

    with pytest.raises(UniqueViolation) as raised:
        await run(transaction, "insert", table="customers", record={"id": "c-1"})
    assert str(raised.value) == (
        'duplicate key value violates unique constraint "customers_pkey"\nDETAIL:  Key (id)=(c-1) already exists.'
    )


@pytest.mark.parametrize(
    ("record", "row"),
    [({"id": None, "name": "Ada"}, "null, Ada"), ({"name": "Ada", "vip": True, "n": 1}, "null, Ada, t, 1")],
)
async def test_a_primary_key_that_is_null_or_left_out_is_refused_in_postgresqls_words(
    transaction, record, row
):
    with pytest.raises(NotNullViolation) as raised:
        await run(transaction, "insert", table="customers", record=record)
    assert str(raised.value) == (
        'null value in column "id" of relation "customers" violates not-null constraint\n'
        f"DETAIL:  Failing row contains ({row})."
    )


async def test_a_missing_parent_is_refused_in_postgresqls_words(transaction):
    with pytest.raises(ForeignKeyViolation) as raised:
        await run(transaction, "insert", table="orders", record=ORDER, references=TO_CUSTOMERS)
    assert str(raised.value) == (
        'insert or update on table "orders" violates foreign key constraint "orders_customer_id_fkey"\n'
        'DETAIL:  Key (customer_id)=(c-1) is not present in table "customers".'
    )
    assert transaction.state == {}


async def test_an_update_to_a_missing_parent_is_refused_in_the_same_words(transaction):
    await insert_customer_and_order(transaction)

    with pytest.raises(ForeignKeyViolation, match=r"Key \(customer_id\)=\(c-9\) is not present"):
        await run(transaction, "update", table="orders", id="o-1", changes={"customer_id": "c-9"})


async def test_a_referenced_row_is_not_deleted_in_postgresqls_words(transaction):
    await insert_customer_and_order(transaction)

    with pytest.raises(ForeignKeyViolation) as raised:
        await run(transaction, "delete", table="customers", id="c-1")
    assert str(raised.value) == (
        'update or delete on table "customers" violates foreign key constraint "orders_customer_id_fkey" on table '
        '"orders"\nDETAIL:  Key (id)=(c-1) is still referenced from table "orders".'
    )


@pytest.mark.parametrize(
    ("break_it", "category", "key"),
    [
        (("insert", {"table": "orders", "record": {"id": 2, "customer_id": "c-9"}, "references": TO_CUSTOMERS}),
         HintCategory.FOREIGN_KEY_VIOLATION, "customer_id"),
        (("update", {"table": "orders", "id": "o-1", "changes": {"customer_id": "c-9"}}),
         HintCategory.FOREIGN_KEY_VIOLATION, "customer_id"),
        (("insert", {"table": "orders", "record": ORDER}), HintCategory.UNIQUE_VIOLATION, "id"),
        (("insert", {"table": "orders", "record": {"total": 1}}), HintCategory.NOT_NULL_VIOLATION, "id"),
        (("delete", {"table": "customers", "id": "c-1"}), HintCategory.FOREIGN_KEY_VIOLATION, "id"),
    ],
)  # fmt: skip
async def test_the_hint_engine_reads_the_category_and_the_column(transaction, break_it, category, key):
    await insert_customer_and_order(transaction)
    name, arguments = break_it

    with pytest.raises(Exception, match="violates") as raised:
        await run(transaction, name, **arguments)
    hint = hints.clean(f"{type(raised.value).__name__}: {raised.value}")

    assert hint.category is category
    assert hint.keys[0] == key


async def test_a_row_may_be_deleted_once_nothing_refers_to_it(transaction):
    await insert_customer_and_order(transaction)
    await run(transaction, "insert", table="customers", record={"id": "c-2"})
    await run(transaction, "update", table="orders", id="o-1", changes={"customer_id": "c-2"})

    await run(transaction, "delete", table="customers", id="c-1")
    with pytest.raises(ForeignKeyViolation):
        await run(transaction, "delete", table="customers", id="c-2")
    await run(transaction, "update", table="orders", id="o-1", changes={"customer_id": None})
    await run(transaction, "delete", table="customers", id="c-2")
    await run(transaction, "delete", table="orders", id="o-1")

    assert transaction.state == {}


async def test_a_foreign_key_that_is_null_refers_to_nothing(transaction):
    record = {"id": 1, "customer_id": None}

    assert await run(transaction, "insert", table="orders", record=record, references=TO_CUSTOMERS) == record


async def test_a_row_may_refer_to_itself_and_then_be_deleted(transaction):
    await run(transaction, "insert", table="staff", record={"id": 1, "boss": 1}, references={"boss": "staff"})
    await run(transaction, "delete", table="staff", id=1)

    assert transaction.state == {}


async def test_a_foreign_key_of_another_type_finds_no_parent(transaction):
    await run(transaction, "insert", table="customers", record={"id": 1})

    with pytest.raises(
        ForeignKeyViolation, match=r'Key \(customer_id\)=\(1\) is not present in table "customers"'
    ):
        await run(
            transaction, "insert", table="o", record={"id": 1, "customer_id": "1"}, references=TO_CUSTOMERS
        )


async def test_a_reference_may_name_the_parents_column(transaction):
    await run(transaction, "insert", table="customers", record={"code": "A"}, primary_key="code")
    to_code = {"c": {"table": "customers", "column": "code"}}

    await run(transaction, "insert", table="o", record={"id": 1, "c": "A"}, references=to_code)
    to_name = {"c": {"table": "customers", "column": "name"}}
    with pytest.raises(InvalidForeignKey) as raised:
        await run(transaction, "insert", table="o", record={"id": 2, "c": "A"}, references=to_name)
    assert str(raised.value) == (
        'there is no unique constraint matching given keys for referenced table "customers"'
    )


async def test_a_reference_over_a_column_that_there_is_not_is_refused_in_postgresqls_words(transaction):
    with pytest.raises(InvalidForeignKey) as raised:
        await run(transaction, "insert", table="orders", record={"id": 1}, references=TO_CUSTOMERS)
    assert str(raised.value) == 'column "customer_id" referenced in foreign key constraint does not exist'


@pytest.mark.parametrize("name", ["get", "update", "delete"])
async def test_a_missing_row_is_a_failure_that_names_the_id(transaction, name):
    changes = {"changes": {}} if name == "update" else {}

    with pytest.raises(ToolFailure, match="table \"t\" has no row with primary key 'x'") as failed:
        await run(transaction, name, table="t", id="x", **changes)
    assert failed.value.category == HintCategory.MISSING_RECORD
    assert failed.value.keys == ("id",)


async def test_a_primary_key_is_not_changed(transaction):
    await run(transaction, "insert", table="t", record={"id": 1, "a": 1})

    assert await run(transaction, "update", table="t", id=1, changes={"id": 1, "a": 2}) == {"id": 1, "a": 2}
    for other in (2, "1", 1.0, True):
        with pytest.raises(ToolFailure, match="can't be changed"):
            await run(transaction, "update", table="t", id=1, changes={"id": other})
    with pytest.raises(NotNullViolation):
        await run(transaction, "update", table="t", id=1, changes={"id": None})


@pytest.mark.parametrize("value", [True, 1.0, 1.5, [], {}, "x" * (MAX_ID_BYTES + 1), "a\x00"])
async def test_keys_of_other_kinds_are_refused_with_their_column(transaction, value):
    with pytest.raises(ToolFailure) as failed:
        await run(transaction, "insert", table="t", record={"id": value})
    assert failed.value.keys == ("id",)

    with pytest.raises(ToolFailure) as failed:
        await run(
            transaction, "insert", table="t", record={"id": 1, "c": value}, references={"c": "customers"}
        )
    assert failed.value.keys == ("c",)
    assert transaction.state == {}


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "a/b", 'a"b', "é", "x" * 64, "a\n"])
async def test_names_are_identifiers(transaction, name):
    for arguments in (
        {"table": name, "record": {"id": 1}},
        {"table": "t", "record": {"id": 1, name: 2}},
        {"table": "t", "record": {name: 1}, "primary_key": name},
        {"table": "t", "record": {"id": 1}, "references": {name: "t"}},
        {"table": "t", "record": {"id": 1, "a": 1}, "references": {"a": name}},
        {"table": "t", "record": {"id": 1, "a": 1}, "references": {"a": {"table": "t", "column": name}}},
    ):
        with pytest.raises(ToolFailure, match="name"):
            await run(transaction, "insert", **arguments)


async def test_a_misspelt_reference_is_told_precisely(transaction):
    references = {"c": {"table": "t", "colum": "id"}}
    with pytest.raises(ArgumentsRefused) as refused:
        await run(transaction, "insert", table="t", record={"id": 1}, references=references)
    assert "missing argument 'references.c.column'" in str(refused.value)


async def test_the_commit_is_asked_to_check_the_parent_again(transaction):
    await insert_customer_and_order(transaction)
    assert transaction.failing_checks() == []

    del transaction.state["record/customers/s:c-1"]  # another transaction's deletion, committed meanwhile

    assert transaction.failing_checks() == [
        'insert or update on table "orders" violates foreign key constraint "orders_customer_id_fkey" '
        'DETAIL:  Key (customer_id)=(c-1) is not present in table "customers".'
    ]


async def test_the_commit_is_asked_to_check_again_that_nothing_refers_to_a_deleted_row(transaction):
    await run(transaction, "insert", table="customers", record={"id": "c-1"})
    await run(transaction, "delete", table="customers", id="c-1")
    assert transaction.failing_checks() == []

    other = FakeTransaction(state={"record/customers/s:c-1": json.dumps(
        {"primary_key": "id", "record": {"id": "c-1"}, "references": {}})})  # fmt: skip
    await run(other, "insert", table="orders", record=ORDER, references=TO_CUSTOMERS)
    transaction.state |= other.state  # another transaction's order, committed meanwhile

    assert transaction.failing_checks() == [
        'update or delete on table "customers" violates a foreign key constraint on another table '
        "DETAIL:  Key (id)=(c-1) is still referenced from it."
    ]
