"""The agent. Where a real one asks a language model for the next tool call, this one has a script.

It has what a real one needs: it refers to earlier outputs by reference (so that the server knows
what depends on what), says why it does a step, and heeds the constraints that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agenttx import Step, StepOutcome

CUSTOMER_IN_THE_FOOTER = "cus_120"
LEDGER_BEFORE = "order,customer,cents\n"


class ScriptedModel:
    """Proposes steps one by one, and forgets the outcomes that were undone."""

    def __init__(self) -> None:
        self._outcomes: dict[int, StepOutcome] = {}

    def next_step(self, step_id: int, constraints: Sequence[str]) -> Step | None:
        """Return the call for this position, or None when the task is done."""
        if step_id > len(SCRIPT):
            return None
        return SCRIPT[step_id - 1](self._outcomes, constraints)

    def remember(self, outcome: StepOutcome) -> None:
        self._outcomes[outcome.step_id] = outcome

    def forget_from(self, step_id: int) -> None:
        self._outcomes = {number: kept for number, kept in self._outcomes.items() if number < step_id}


Outcomes = dict[int, StepOutcome]


def register_customer(done: Outcomes, constraints: Sequence[str]) -> Step:
    customer = {"id": "cus_101", "name": "Northwind Traders", "email": "orders@northwind.example"}
    return Step("record.insert", {"table": "customers", "record": customer}, "a new sender: register it")


def open_ledger(done: Outcomes, constraints: Sequence[str]) -> Step:
    return Step("fs.write", {"path": "ledger.csv", "content": LEDGER_BEFORE}, "a ledger for today's orders")


def choose_customer(done: Outcomes, constraints: Sequence[str]) -> Step:
    """The mistake: an account number from the mail's footer, closed years ago, unless it was told so."""
    told_otherwise = any(CUSTOMER_IN_THE_FOOTER in constraint for constraint in constraints)
    customer_id = str(done[1].ref("id")) if told_otherwise else CUSTOMER_IN_THE_FOOTER
    reason = "no such customer: the sender, then" if told_otherwise else "the mail's footer says cus_120"
    choice = {"key": "orders/ord_9001/customer", "value": {"customer_id": customer_id}}
    return Step("kv.put", choice, reason)


def add_printer(done: Outcomes, constraints: Sequence[str]) -> Step:
    product = {"id": "sku_7", "name": "Label printer", "cents": 18900}
    return Step("record.insert", {"table": "products", "record": product}, "the mail asks for a printer")


def add_rolls(done: Outcomes, constraints: Sequence[str]) -> Step:
    product = {"id": "sku_9", "name": "Label rolls", "cents": 2400}
    return Step("record.insert", {"table": "products", "record": product}, "and for rolls")


def draft_order(done: Outcomes, constraints: Sequence[str]) -> Step:
    draft = {
        "customer_id": done[3].ref("value.customer_id"),
        "products": [done[4].ref("id"), done[5].ref("id")],
        "cents": done[4]["cents"] + done[5]["cents"],
    }
    return Step("kv.put", {"key": "orders/ord_9001/draft", "value": draft}, "put the order together")


def write_order_sheet(done: Outcomes, constraints: Sequence[str]) -> Step:
    text = (
        f"Order ord_9001\nCustomer: {done[6].ref('value.customer_id')}\nCents: {done[6].ref('value.cents')}\n"
    )
    return Step("fs.write", {"path": "orders/ord_9001.txt", "content": text}, "a sheet for the warehouse")


def enter_in_ledger(done: Outcomes, constraints: Sequence[str]) -> Step:
    line = f"ord_9001,{done[6].ref('value.customer_id')},{done[6].ref('value.cents')}\n"
    return Step("fs.write", {"path": "ledger.csv", "content": LEDGER_BEFORE + line}, "enter it in the ledger")


def stage_confirmation(done: Outcomes, constraints: Sequence[str]) -> Step:
    mail = {
        "to": done[1].ref("email"),
        "subject": "Your order ord_9001",
        "customer_id": done[6].ref("value.customer_id"),
    }
    return Step("effect.stage", {"channel": "mail", "payload": mail}, "the confirmation, once committed")


def book_order(done: Outcomes, constraints: Sequence[str]) -> Step:
    """Where the wrong choice comes to light: the order's customer must exist."""
    order = {
        "id": "ord_9001",
        "customer_id": done[6].ref("value.customer_id"),
        "cents": done[6].ref("value.cents"),
    }
    arguments = {"table": "orders", "record": order, "references": {"customer_id": "customers"}}
    return Step("record.insert", arguments, "book the order")


def add_order_line(done: Outcomes, constraints: Sequence[str]) -> Step:
    line = {"id": "line_1", "order_id": done[10].ref("id"), "product_id": done[4].ref("id")}
    references = {"order_id": "orders", "product_id": "products"}
    return Step(
        "record.insert", {"table": "order_lines", "record": line, "references": references}, "its line"
    )


def write_invoice_record(done: Outcomes, constraints: Sequence[str]) -> Step:
    invoice = {"id": "inv_77", "order_id": done[10].ref("id"), "cents": done[10].ref("cents")}
    arguments = {"table": "invoices", "record": invoice, "references": {"order_id": "orders"}}
    return Step("record.insert", arguments, "invoice the order")


def write_invoice_file(done: Outcomes, constraints: Sequence[str]) -> Step:
    text = f"Invoice {done[12].ref('id')} for {done[10].ref('customer_id')}: {done[12].ref('cents')} cents\n"
    return Step("fs.write", {"path": "invoices/inv_77.txt", "content": text}, "the invoice to print")


def stage_invoice(done: Outcomes, constraints: Sequence[str]) -> Step:
    mail = {
        "to": done[1].ref("email"),
        "subject": f"Invoice {done[12].ref('id')}",
        "customer_id": done[10].ref("customer_id"),
    }
    return Step("effect.stage", {"channel": "mail", "payload": mail}, "and mail it")


SCRIPT: tuple[Callable[[Outcomes, Sequence[str]], Step], ...] = (
    register_customer,
    open_ledger,
    choose_customer,
    add_printer,
    add_rolls,
    draft_order,
    write_order_sheet,
    enter_in_ledger,
    stage_confirmation,
    book_order,
    add_order_line,
    write_invoice_record,
    write_invoice_file,
    stage_invoice,
)
