"""What turns at runs' transactions work with; made by the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from agenttx_server.engine.commit_execution import CommitExecution
from agenttx_server.engine.group_settlement import GroupSettlement
from agenttx_server.engine.held_run import HeldRun
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.records import ServerId
from agenttx_server.engine.rewind_execution import RewindExecution
from agenttx_server.engine.rewinding import Rewinder
from agenttx_server.engine.saga import Saga
from agenttx_server.engine.server_lease import ServerLease
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_execution import StepExecution
from agenttx_server.engine.sub_steps import SubSteps
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import TransactionWriter

__all__ = ["HeldParts"]


@dataclass(frozen=True, slots=True)
class HeldParts:
    """The engine's parts, for one server."""

    services: EngineServices
    writer: TransactionWriter
    tasks: OwnedTasks
    lease: ServerLease
    saga: Saga
    rewinder: Rewinder
    settlement: GroupSettlement
    steps: StepExecution
    rewinds: RewindExecution
    commits: CommitExecution
    sub_steps: SubSteps

    def new_run(self, transaction: Transaction, first: int, size: int, held_under: ServerId) -> HeldRun:
        """Return the run of an open group's members; ``held_under``: the lease under which it is this server's."""
        run = HeldRun(
            self.services,
            self.writer,
            self.tasks,
            transaction,
            [],
            [],
            self.lease,
            size=size,
            sub_steps=self.sub_steps,
            held_under=held_under,
        )
        run.first = first
        return run
