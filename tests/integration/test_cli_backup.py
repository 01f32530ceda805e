"""`agenttx backup` of a server that runs, and `agenttx restore` of it elsewhere and in its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.cli_calls import run_to_end
from tests.support.running_server import server_process

from agenttx import AttemptState, Client


class Agents:
    """Agents that write steps until told to stop, and what was answered to them."""

    def __init__(self, address: str, count: int) -> None:
        self._address = address
        self._stopped = threading.Event()
        self._answered_once = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._answered: dict[str, int] = {}
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def wait_for_steps(self, count: int) -> None:
        for _ in range(count):
            assert self._answered_once.acquire(timeout=60)

    @property
    def answered(self) -> dict[str, int]:
        """The last step answered, by transaction."""
        with self._lock:
            return dict(self._answered)

    def _run(self) -> None:
        with Client(self._address) as client:
            transaction = client.transaction(agent_id="writer").begin()
            step = 0
            while not self._stopped.is_set():
                step += 1
                name = transaction.transaction_id
                transaction.step("kv.put", key=f"{name}/{step}", value={"step": step})
                with self._lock:
                    self._answered[name] = step
                self._answered_once.release()


@contextmanager
def agents(address: str, count: int) -> Iterator[Agents]:
    working = Agents(address, count)
    working.start()
    try:
        yield working
    finally:
        working.stop()


def steps_of(address: str) -> dict[str, int]:
    """The completed steps of each transaction of a server."""
    with Client(address) as client:
        found = {}
        for summary in client.list_transactions():
            attempts = list(client.list_steps(summary.transaction_id))
            assert [attempt.step_id for attempt in attempts] == list(range(1, len(attempts) + 1))
            assert {attempt.state for attempt in attempts} == {AttemptState.COMPLETED}
            found[summary.transaction_id] = len(attempts)
        return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_backup_of_a_server_at_work_holds_every_step_that_was_answered(data: Path, tmp_path: Path) -> None:
    copy, elsewhere = tmp_path / "monday.db", tmp_path / "elsewhere"
    with server_process(data) as server, agents(server.address, 4) as working:
        working.wait_for_steps(100)
        before = working.answered
        made = run_to_end("backup", str(copy), "--data-dir", str(data), "--json")
        working.wait_for_steps(4)  # they go on
        # The first again, now that it is there.
        again = run_to_end("backup", str(copy), "--data-dir", str(data))
    assert (made.code, made.err) == (0, "")
    assert made.json["transactions"] == len(before) == 4
    assert made.json["size_bytes"] == copy.stat().st_size
    assert again.code == 1
    assert "--force" in again.err
    assert again.err.count("\n") == 1

    restored = run_to_end("restore", str(copy), "--data-dir", str(elsewhere))

    assert (restored.code, restored.err) == (0, "")
    assert restored.out.startswith(f"Restored from {copy}: 4 transactions, ")
    assert sorted(path.name for path in elsewhere.iterdir()) == ["agenttx.db", "agenttx.db.lock"]
    with server_process(elsewhere) as server:
        found = steps_of(server.address)
        assert found.keys() == before.keys()
        assert all(found[name] >= steps for name, steps in before.items())
        with Client(server.address) as client:
            for name, steps in found.items():
                transaction = client.resume(name).begin()
                assert transaction.step("kv.get", key=f"{name}/{steps}").output["value"] == {"step": steps}
                transaction.commit()


def test_a_restore_in_place_keeps_what_was_there(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "monday.db"
    with server_process(data) as server:
        with agents(server.address, 1) as working:
            working.wait_for_steps(3)
        assert run_to_end("backup", str(copy), "--data-dir", str(data)).code == 0
        before = working.answered
        with agents(server.address, 1) as working:
            working.wait_for_steps(1)
        refused = run_to_end("restore", str(copy), "--data-dir", str(data))
    assert refused.code == 78
    assert f"is in use by process {server.process.pid}" in refused.err
    assert refused.err.count("\n") == 1
    assert not list(data.glob("*.before-restore-*"))

    restored = run_to_end("restore", str(copy), "--data-dir", str(data), "--json")

    assert restored.code == 0
    assert [str(path) for path in data.glob("*.before-restore-*")] == [restored.json["kept"]]
    with server_process(data) as server:
        assert steps_of(server.address) == before


def test_what_is_no_backup_is_refused_in_one_line(data: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("no database " * 1000)
    for file, code, words in ((text, 78, "can't be read"), (tmp_path / "none.db", 1, "there is no backup")):
        outcome = run_to_end("restore", str(file), "--data-dir", str(data))
        assert (outcome.code, outcome.out) == (code, "")
        assert words in outcome.err
        assert outcome.err.count("\n") == 1
    assert not (data / "agenttx.db").exists()
    outcome = run_to_end("backup", str(tmp_path / "copy.db"), "--data-dir", str(data))
    assert outcome.code == 1
    assert "there is no database" in outcome.err
    assert not (tmp_path / "copy.db").exists()
