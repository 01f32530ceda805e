"""What a seed stands for: how many servers and clients, what they do, what befalls them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

__all__ = ["Plan", "draw_plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Drawn from a seed. Faults come at the n-th callback that servers run, counted over all of them.

    ``crashes`` are (callback, seconds until the server is back); ``pauses`` (callback, seconds).
    ``write_faults``, ``read_faults``, ``delays`` and ``network_faults`` are chances per write, read and message.
    """

    seed: int
    servers: int
    clients: int
    transactions: int
    operations: int
    disorder: float
    write_faults: float
    read_faults: float
    delays: float
    network_faults: float
    trouble: float
    crashes: tuple[tuple[int, float], ...]
    pauses: tuple[tuple[int, float], ...]


_LEASE_SECONDS = 3.0


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(f"plan {seed}")
    servers = random.choice((1, 1, 2, 2, 3))
    operations = random.choice((3, 5, 5, 8, 12))
    span = 40 * operations + 60
    crashes = tuple(
        (random.randint(1, span), random.choice((0.0, 0.5, _LEASE_SECONDS * random.uniform(0.5, 2))))
        for _ in range(random.choice((0, 0, 1, 1, 2)))
    )
    pauses = tuple(
        (random.randint(1, span), _LEASE_SECONDS * random.uniform(0.3, 3))
        for _ in range(random.choice((0, 1, 1, 2)) if servers > 1 else random.choice((0, 0, 1)))
    )
    is_faulty = random.random() < 0.5
    return Plan(
        seed=seed,
        servers=servers,
        clients=random.choice((1, 1, 2, 3, 4)),
        transactions=random.choice((1, 1, 2, 3)),
        operations=operations,
        disorder=random.choice((0.0, 0.2, 0.8)),
        write_faults=random.choice((0.02, 0.08)) if is_faulty else 0.0,
        read_faults=random.choice((0.0, 0.02)) if is_faulty else 0.0,
        delays=random.choice((0.0, 0.0, 0.05, 0.3)),
        network_faults=random.choice((0.0, 0.0, 0.05, 0.2)),
        trouble=random.choice((0.0, 0.2, 0.4)),
        crashes=tuple(sorted(crashes)),
        pauses=tuple(sorted(pauses)),
    )
