"""Breaks the engine in one place after another and shows which tests notice.

Each mutation is a text in one file and what takes its place; the checks are run until one fails. It is made in
a copy of the tree, so nothing here is touched. Exit status 1 if a mutation is not noticed:

    python scripts/check_mutations.py              all of them
    python scripts/check_mutations.py undo-order   those whose name contains this
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COPIED = ("client", "server", "tests", "pyproject.toml")
_PATIENCE_SECONDS = 240.0

_UNIT = "tests/unit/engine"
_SIMULATION = "simulation"  # so many seeds from 0 on
_SEEDS = 150


@dataclass(frozen=True)
class Mutation:
    """One thing broken. ``checks`` are tests for pytest, or the simulation, the quickest first."""

    name: str
    path: str
    old: str
    new: str
    checks: tuple[str, ...]


_ENGINE = "server/agenttx_server/engine"
_STORE = "server/agenttx_server/store"

MUTATIONS = (
    Mutation(
        "no write-ahead",
        f"{_ENGINE}/group_run.py",
        """                member.idempotency_key = await self._idempotency_key(member, tool)
            await self._write_ahead(member)
""",
        """                member.idempotency_key = await self._idempotency_key(member, tool)
""",
        (f"{_UNIT}/test_coordinator_write_ahead.py", _SIMULATION),
    ),
    Mutation(
        "answer before the commit",
        f"{_ENGINE}/transaction_writer.py",
        "            receipt = await self._store.write(write_set)\n",
        """            asyncio.ensure_future(self._store.write(write_set))
            receipt = WriteReceipt()
""",
        (f"{_UNIT}/test_coordinator_infrastructure.py", _SIMULATION),
    ),
    Mutation(
        "writes after a failed write",
        f"{_ENGINE}/transaction_writer.py",
        """            elif isinstance(error, Exception) and not isinstance(error, CommitRefused):
                transaction.write_failure = _lasting(error)
""",
        "",
        (f"{_UNIT}/test_stale_servers.py", _SIMULATION),
    ),
    Mutation(
        "writes of a shared transaction do not wait",
        f"{_ENGINE}/transaction_writer.py",
        "        if before is None or before.done():\n            if not self._store.is_shared:\n",
        "        if before is None or before is not None:\n            if not self._store.is_shared:\n",
        (f"{_UNIT}/test_stale_servers.py", _SIMULATION),
    ),
    Mutation(
        "no revision guard",
        f"{_STORE}/batch.py",
        "            if known.get(item.transaction_id, 0) == item.expected_revision:\n",
        "            if item is not None:\n",
        ("tests/contract/test_store_writer.py", "tests/contract/test_store_contract.py"),
    ),
    Mutation(
        "no fence in recovery",
        f"{_ENGINE}/step_recovery.py",
        """            found.ended.append(doubtful)
        await self._write_state(transaction, rows)
""",
        """            found.ended.append(doubtful)
        if rows.attempts:
            await self._write_state(transaction, rows)
""",
        (f"{_UNIT}/test_stale_servers.py",),
    ),
    Mutation(
        "irreversible run again in recovery",
        f"{_ENGINE}/step_recovery.py",
        """            elif attempt.effect_class is EffectClass.IRREVERSIBLE:
                found.doubtful.append(attempt)
""",
        """            elif attempt.effect_class is EffectClass.IRREVERSIBLE:
                found.to_finish.append(attempt)
""",
        (f"{_UNIT}/test_recovery.py", _SIMULATION),
    ),
    Mutation(
        "compensatable run again without undo",
        f"{_ENGINE}/step_recovery.py",
        "                found.to_undo.append(attempt)\n",
        "                found.to_finish.append(attempt)\n",
        (f"{_UNIT}/test_recovery.py", _SIMULATION),
    ),
    Mutation(
        "request not compared",
        f"{_ENGINE}/step_execution.py",
        "        check_same_request(request_id, attempt.fingerprint, member.fingerprint)\n",
        "",
        (f"{_UNIT}/test_coordinator_order.py",),
    ),
    Mutation(
        "undo oldest first",
        f"{_ENGINE}/transaction.py",
        """            for _, undo in sorted(self.undo.items(), reverse=True)
            if undo.step_id >= to_step and""",
        """            for _, undo in sorted(self.undo.items())
            if undo.step_id >= to_step and""",
        (f"{_UNIT}/test_coordinator_rewinds.py", _SIMULATION),
    ),
    Mutation(
        "failed undo holds nothing",
        f"{_ENGINE}/rewinding.py",
        """        failed = transaction.failed_undo(pending.to_step)
        if failed or following.to_ask:
""",
        """        failed = transaction.failed_undo(pending.to_step)
        if following.to_ask:
""",
        (f"{_UNIT}/test_compensations.py", _SIMULATION),
    ),
    Mutation(
        "bases not validated",
        f"{_STORE}/publication.py",
        "        return (moved,)\n",
        "        return ()\n",
        ("tests/contract/test_store_publication.py",),
    ),
    Mutation(
        "delivered before the commit",
        f"{_ENGINE}/commit_execution.py",
        """        run = await self._dispatcher.prepare(transaction, rows, head)
        try:
""",
        """        run = await self._dispatcher.prepare(transaction, rows, head)
        for effect in run.effects.values() if run is not None else ():
            await self._services.sink.deliver(before.transaction_id, effect)
        try:
""",
        (_SIMULATION, f"{_UNIT}/test_outbox.py"),
    ),
    Mutation(
        "key used again after undo",
        f"{_ENGINE}/group_run.py",
        "                and not last.undo_registered\n            ):\n",
        "            ):\n",
        (f"{_UNIT}/test_coordinator_write_ahead.py", _SIMULATION),
    ),
    Mutation(
        "new key for a recovered idempotent call",
        f"{_ENGINE}/group_run.py",
        "        member.idempotency_key = attempt.idempotency_key\n",
        "        member.idempotency_key = self._services.ids.new_id()\n",
        (_SIMULATION, f"{_UNIT}/test_recovery.py"),
    ),
    Mutation(
        "answers from memory that is behind",
        f"{_ENGINE}/transaction_turns.py",
        "        if not self._services.store.is_shared or transaction is None:\n            return\n",
        "        if True or transaction is None:\n            return\n",
        (f"{_UNIT}/test_many_servers.py", _SIMULATION),
    ),
    Mutation(
        "starts under a lease that ends",
        f"{_ENGINE}/server_lease.py",
        "        return not self._store.is_shared or left >= self._seconds * _MARGIN\n",
        "        return True\n",
        (f"{_UNIT}/test_many_servers.py",),
    ),
    Mutation(
        "interrupted rewinds are nobody's",
        f"{_ENGINE}/transaction_writer.py",
        "        return record.pending_rewind.is_under_way\n",
        "        return False\n",
        (_SIMULATION, f"{_UNIT}/test_recovery.py"),
    ),
    Mutation(
        "undo run again where nothing can be written",
        f"{_ENGINE}/rewinding.py",
        "            if transaction.owed_undo(pending.to_step):\n",
        "            if False:\n",
        (f"{_UNIT}/test_compensations.py",),
    ),
    Mutation(
        "what was left to the group's end counts as durable",
        f"{_ENGINE}/held_groups.py",
        "        if is_ahead or self._transaction.write_failure is not None:\n",
        "        if self._transaction.write_failure is not None:\n",
        (f"{_UNIT}/test_held_groups.py",),
    ),
    Mutation(
        "late effects forgotten",
        f"{_ENGINE}/recovery.py",
        "        for item in given_up:\n            await self._report(transaction, item)\n",
        "",
        (f"{_UNIT}/test_stale_servers.py", _SIMULATION),
    ),
    Mutation(
        "late undo does not wait for its tool",
        f"{_ENGINE}/late_tools.py",
        "        return any(outlived.holds_back(transaction_id, undo) for outlived in self._outlived)\n",
        "        return False\n",
        (_SIMULATION, f"{_UNIT}/test_recovery.py"),
    ),
    Mutation(
        "undo of a tool in doubt not owed for its end when it is taken back",
        f"{_ENGINE}/rewinding.py",
        "                rows.undo += copies\n",
        "",
        (f"{_UNIT}/test_stale_servers.py",),
    ),
    Mutation(
        "losers of a conflict not named",
        f"{_ENGINE}/group_settlement.py",
        "            kept += _kept_by_losing(run, used.step_id)\n",
        "",
        (f"{_UNIT}/test_stale_servers.py", _SIMULATION),
    ),
    Mutation(
        "undo retried from memory that is behind",
        f"{_ENGINE}/compensation_execution.py",
        "            await self._take_up(transaction, failed)\n",
        "",
        (f"{_UNIT}/test_stale_servers.py", _SIMULATION),
    ),
    Mutation(
        "rewinds keep state",
        f"{_ENGINE}/rewinding.py",
        "        await self._writer.write(transaction, rows, rewind_from=pending.to_step, **head)\n",
        "        await self._writer.write(transaction, rows, **head)\n",
        (_SIMULATION,),
    ),
    Mutation(
        "conflicts between siblings pass",
        f"{_ENGINE}/group_settlement.py",
        "        if run.size == 1:\n            return _Verdict()\n",
        "        if run.size >= 1:\n            return _Verdict()\n",
        (f"{_UNIT}/test_coordinator_groups.py",),
    ),
)


def main() -> int:
    """Run what was asked for; return 1 if a mutation survived."""
    wanted = [mutation for mutation in MUTATIONS if all(word in mutation.name for word in sys.argv[1:])]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = Path(folder)
        _copy(tree)
        for check in dict.fromkeys(check for mutation in wanted for check in mutation.checks):
            if not _passes(tree, check):
                print(f"{check} fails without any mutation")
                return 1
        for mutation in wanted:
            began = time.perf_counter()
            caught_by = _caught_by(tree, mutation)
            survived += not caught_by
            took = time.perf_counter() - began
            print(f"{mutation.name:46} {caught_by or 'SURVIVED':50} {took:5.1f} s", flush=True)
    print(f"{len(wanted) - survived} of {len(wanted)} mutations were noticed")
    return 1 if survived else 0


def _copy(tree: Path) -> None:
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, tree / name)


def _caught_by(tree: Path, mutation: Mutation) -> str:
    path = tree / mutation.path
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: the text to replace is not once in {mutation.path}")
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        return next((check for check in mutation.checks if not _passes(tree, check)), "")
    finally:
        path.write_text(text)


def _passes(tree: Path, check: str) -> bool:
    if check == _SIMULATION:
        command = ["-m", "tests.simulation", "--seed", "0", "--count", str(_SEEDS)]
    else:
        command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", check]
    # Before site-packages: an editable install of the real tree lies there.
    path = os.pathsep.join(str(tree / name) for name in ("server", "client", "."))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1):
        sys.stderr.write(done.stderr.decode() + done.stdout.decode()[-2000:])
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
