"""Connections that break at any moment, under every kind of call: what the client believes is what the server did."""

import random
import threading
import uuid
from typing import Any

import pytest
from tests.support.client_kinds import connect
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running_server import ServerProcess, server_process

from agenttx import RetryPolicy, StepRolledBack, TransactionStatus, call

__all__ = ["connect"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with server_process(tmp_path_factory.mktemp("data"), tools="tests.support.sample_tools") as process:
        yield process


class Saboteur:
    """Cuts every connection of a proxy again and again, until it is stopped."""

    def __init__(self, proxy: CuttingProxy, random: random.Random) -> None:
        self._proxy, self._random = proxy, random
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sabotage, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _sabotage(self) -> None:
        # Longer than a reconnect takes, or nothing would ever come through.
        while not self._stopped.wait(self._random.uniform(0.03, 0.2)):
            self._proxy.cut_all()


class Model:
    """The counters as they must be, with what each live step added."""

    def __init__(self) -> None:
        self.added: list[dict[str, int]] = []

    @property
    def next_step(self) -> int:
        return len(self.added) + 1

    def counters(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for step in self.added:
            for key, by in step.items():
                totals[key] = totals.get(key, 0) + by
        return totals


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_breaks_the_client_and_the_server_agree(server: ServerProcess, connect, seed: int):
    chance = random.Random(seed)
    name = f"t{uuid.uuid4().hex[:12]}"
    model = Model()
    with CuttingProxy(int(server.address.rpartition(":")[2])) as proxy:
        client = connect(
            proxy.address, retry=RetryPolicy(initial_backoff_seconds=0.005, max_backoff_seconds=0.1)
        )
        client.connect()
        with Saboteur(proxy, chance), client.transaction(agent_id=name) as tx:
            for _ in range(100):
                ACTIONS[chance.randrange(len(ACTIONS))](tx, model, name, chance)
                assert tx.next_step_id == model.next_step
            result = tx.commit()
        sabotaged = proxy.connections

        assert result.steps_committed == len(model.added)
        state = {entry.key: entry.value for entry in client.scan_state(f"{name}/")}
        assert state == model.counters()
        (summary,) = client.list_transactions(agent_id=name)
        assert summary.status is TransactionStatus.COMMITTED
        events = [event.sequence for event in client.watch(tx.transaction_id)]
        assert events == list(range(1, len(events) + 1))
        assert sabotaged > 1


def increment(tx: Any, model: Model, name: str, chance: random.Random) -> None:
    key = f"{name}/{chance.randrange(5)}"
    outcome = tx.step("sample.inc", key=key, by=1)
    model.added.append({key: 1})
    assert outcome.step_id == len(model.added)


def increment_side_by_side(tx: Any, model: Model, name: str, chance: random.Random) -> None:
    keys = [f"{name}/{number}" for number in chance.sample(range(5), 3)]
    tx.group([call("sample.inc", key=key, by=2) for key in keys])
    model.added += [{key: 2} for key in keys]


def increment_over_a_stream(tx: Any, model: Model, name: str, chance: random.Random) -> None:
    with tx.stream() as steps:
        for _ in range(chance.randrange(1, 20)):
            key = f"{name}/{chance.randrange(5)}"
            submitted = steps.submit("sample.inc", key=key, by=3)
            model.added.append({key: 3})
            if chance.random() < 0.2:
                assert submitted.result().step_id == len(model.added)


def go_back(tx: Any, model: Model, name: str, chance: random.Random) -> None:
    to_step = chance.randrange(max(1, model.next_step - 5), model.next_step + 1)
    result = tx.rewind(to_step, reason="chance")
    assert result.next_step_id == to_step
    del model.added[to_step - 1 :]


def fail(tx: Any, model: Model, name: str, chance: random.Random) -> None:
    with pytest.raises(StepRolledBack) as failure:
        tx.step("sample.fail", message="by chance")
    assert 1 <= failure.value.next_step_id <= model.next_step
    del model.added[failure.value.next_step_id - 1 :]


def look(tx: Any, model: Model, name: str, chance: random.Random) -> None:
    assert tx.refresh().steps_completed == len(model.added)


ACTIONS = (
    increment,
    increment,
    increment_side_by_side,
    increment_over_a_stream,
    go_back,
    fail,
    look,
)
