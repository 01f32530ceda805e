"""What must be true along the way, looked up where it shows: in the answers, on disk, in the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agenttx import Client, CommitResult, StepOutcome, Strategy
from order_desk.model import CUSTOMER_IN_THE_FOOTER, LEDGER_BEFORE, SCRIPT
from order_desk.surroundings import Surroundings

LEDGER_AFTER = LEDGER_BEFORE + "ord_9001,cus_101,21300\n"
SHEET = "Order ord_9001\nCustomer: {}\nCents: 21300\n"
INVOICE = "Invoice inv_77 for cus_101: 21300 cents\n"


@dataclass(frozen=True)
class Fact:
    """Something that must be true, and what was found."""

    statement: str
    found: Any
    expected: Any

    @property
    def holds(self) -> bool:
        return bool(self.found == self.expected)


class Facts:
    """The facts looked at so far. Too few are as bad as broken ones: then a part wasn't played."""

    AT_LEAST = 20

    def __init__(self) -> None:
        self._facts: list[Fact] = []

    def check(self, statement: str, found: Any, expected: Any = True) -> None:
        self._facts.append(Fact(statement, found, expected))

    @property
    def all_hold(self) -> bool:
        return len(self) >= self.AT_LEAST and all(fact.holds for fact in self)

    def __iter__(self) -> Iterator[Fact]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


def check_jump(facts: Facts, failure: StepOutcome) -> None:
    """The failure was understood, and traced to the choice."""
    decision = failure.decision
    path = [(element.step_id, element.key) for element in decision.path] if decision else []
    facts.check("step 10 failed", failure.step_id, 10)
    facts.check(
        "its error was read as a violated foreign key", failure.error_category, "foreign_key_violation"
    )
    facts.check("the hint names the column", "customer_id" in failure.hint)
    facts.check("the constraints for the agent hold the hint", failure.hint in failure.constraints)
    facts.check("the decision was a jump to the cause", failure.strategy, Strategy.DEPENDENCY_JUMP)
    facts.check("the jump went to step 3, the choice", failure.next_step_id, 3)
    facts.check("the path begins at the failure", path[:1], [(10, "customer_id")])
    facts.check("the path ends at the choice", path[-1:], [(3, "customer_id")])


def check_undone(facts: Facts, before: Surroundings, after: Surroundings) -> None:
    """What followed the choice was there, and is not any more."""
    sheet = "orders/ord_9001.txt"
    facts.check(
        "before the jump the order sheet was on disk",
        before.paths.get(sheet),
        SHEET.format(CUSTOMER_IN_THE_FOOTER),
    )
    facts.check("after it the sheet is gone", sheet in after.paths, False)
    facts.check("so is the directory that was made for it", "orders" in after.paths, False)
    facts.check(
        "before the jump the ledger had the order",
        CUSTOMER_IN_THE_FOOTER in before.paths.get("ledger.csv", ""),
    )
    facts.check("after it the ledger is as step 2 left it", after.paths.get("ledger.csv"), LEDGER_BEFORE)
    facts.check("before the jump a mail was staged", before.staged, 1)
    facts.check("after it the mail is dropped", after.staged, 0)
    facts.check("nothing was delivered", after.delivered, [])


def check_committed(facts: Facts, client: Client, commit: CommitResult, now: Surroundings) -> None:
    """What was published is right, all of it and nothing else."""
    choice = client.get_state("orders/ord_9001/customer")
    mails = [
        (mail["channel"], mail["payload"]["subject"], mail["payload"]["customer_id"])
        for mail in now.delivered
    ]
    facts.check("all steps of the task are committed", commit.steps_committed, len(SCRIPT))
    facts.check("the committed choice is the right customer", choice.value, {"customer_id": "cus_101"})
    facts.check(
        "the disk holds exactly the right files",
        now.paths,
        {
            "invoices": "",
            "invoices/inv_77.txt": INVOICE,
            "ledger.csv": LEDGER_AFTER,
            "orders": "",
            "orders/ord_9001.txt": SHEET.format("cus_101"),
        },
    )
    facts.check(
        "the outbox holds exactly the two right mails, in order",
        mails,
        [("mail", "Your order ord_9001", "cus_101"), ("mail", "Invoice inv_77", "cus_101")],
    )
    facts.check("nothing waits to be delivered", now.staged, 0)
    facts.check(f"nothing says {CUSTOMER_IN_THE_FOOTER} any more", CUSTOMER_IN_THE_FOOTER in str(now), False)
