"""Work to come as the text that a checkpoint keeps: activations, what is deferred, rounds of joins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import MISSING, JsonValue, canonical, load
from agenttx_server.graphs.boundary import Work
from agenttx_server.graphs.joins import JoinRound
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.tasks import Activation, CarriedTask

__all__ = ["read_targets_text", "read_work", "targets_text", "work_text"]


def work_text(work: Work) -> str:
    """Write what has to be kept of work; how the last superstep was routed is not."""
    kept: dict[str, JsonValue] = {}
    if work.activations:
        kept["activations"] = _places(work.activations)
    if work.deferred:
        kept["deferred"] = _places(work.deferred)
    if work.rounds:
        kept["rounds"] = {key: [list(item.arrived), item.fired] for key, item in work.rounds.items()}
    return canonical(kept)


def read_work(text: str) -> Work:
    """Read what :func:`work_text` wrote."""
    kept: Any = load(text)
    return Work(
        activations=tuple(_activation(place) for place in kept.get("activations", ())),
        deferred=tuple(_activation(place) for place in kept.get("deferred", ())),
        rounds={
            key: JoinRound(tuple(arrived), fired) for key, (arrived, fired) in kept.get("rounds", {}).items()
        },
    )


def targets_text(targets: Iterable[Target]) -> str:
    """Write targets of a request; "" for none."""
    places = _places(targets)
    return canonical(places) if places else ""


def read_targets_text(text: str) -> tuple[Target, ...]:
    """Read what :func:`targets_text` wrote."""
    places: Any = load(text) if text else []
    return tuple(Target(*place) for place in places)


def _places(items: Iterable[Activation | Target]) -> list[JsonValue]:
    return [_place(item) for item in items]


def _place(item: Activation | Target) -> JsonValue:
    place: list[JsonValue] = [item.node] if item.arg is MISSING else [item.node, item.arg]
    if isinstance(item, Activation) and item.carried is not None:
        return {"carried": list(astuple(item.carried)), "place": place}
    if isinstance(item, Activation) and item.given:
        return {"given": dict(item.given), "place": place}
    return place


def _activation(kept: Any) -> Activation:
    if isinstance(kept, dict) and "given" in kept:
        return replace(Activation(*kept["place"]), given=tuple(sorted(kept["given"].items())))
    if isinstance(kept, dict):
        return replace(Activation(*kept["place"]), carried=CarriedTask(*kept["carried"]))
    return Activation(*kept)
