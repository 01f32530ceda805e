"""What a node answers: an update, a command, a list of those, an interrupt, or nothing.

An update is an object of channels. Whatever else is meant is said by an object with one reserved key,
which no channel can have:

    {"__command__": {"update": {...}, "goto": [...], "graph": "PARENT"}}
    {"__interrupt__": payload}

``goto`` is a node's name, ``{"node": name, "arg": value}`` (a Send), or a list of those. A list of updates
and commands is one write-set, in order. Within an update ``{"__overwrite__": value}`` replaces what is in the
channel, and what siblings write.
"""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import MISSING, JsonValue, Missing
from agenttx_server.graphs.channel_types import type_name
from agenttx_server.graphs.errors import InvalidNodeResult
from agenttx_server.graphs.limits import MAX_TASKS

__all__ = [
    "COMMAND",
    "INTERRUPT",
    "OVERWRITE",
    "PARENT",
    "NodeResult",
    "Target",
    "read_result",
    "read_targets",
]

COMMAND: Final = "__command__"
INTERRUPT: Final = "__interrupt__"
OVERWRITE: Final = "__overwrite__"
PARENT: Final = "PARENT"

Update = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Target:
    """A place to go to; with an ``arg`` it is a Send."""

    node: str
    arg: JsonValue | Missing = MISSING

    @property
    def is_send(self) -> bool:
        """Whether it is a Send."""
        return self.arg is not MISSING


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What a node answered.

    Attributes:
        updates: in order; one write-set.
        goto: where its commands go in its own graph, in order.
        parent_updates: updates for the embedding graph.
        parent_goto: where its commands go in the embedding graph; None where no command was for it.
        interrupt: what it asks; MISSING where it asks nothing.
        is_command: whether there was a command, even one that goes nowhere.
    """

    updates: tuple[Update, ...] = ()
    goto: tuple[Target, ...] = ()
    parent_updates: tuple[Update, ...] = ()
    parent_goto: tuple[Target, ...] | None = None
    interrupt: JsonValue | Missing = MISSING
    is_command: bool = False


def read_result(answer: JsonValue) -> NodeResult:
    """Read a node's answer.

    Raises:
        InvalidNodeResult: it is none of these.
    """
    if isinstance(answer, dict) and INTERRUPT in answer:
        if len(answer) > 1:
            raise InvalidNodeResult("an interrupt has nothing beside it")
        return NodeResult(interrupt=answer[INTERRUPT])
    items = answer if isinstance(answer, list) else [] if answer is None else [answer]
    results = [_read_item(item) for item in items]
    parents = [result.parent_goto for result in results if result.parent_goto is not None]
    return NodeResult(
        updates=tuple(update for result in results for update in result.updates),
        goto=tuple(target for result in results for target in result.goto),
        parent_updates=tuple(update for result in results for update in result.parent_updates),
        parent_goto=tuple(target for targets in parents for target in targets) if parents else None,
        is_command=any(result.is_command for result in results),
    )


def read_targets(goto: JsonValue) -> tuple[Target, ...]:
    """Read what a command, a router or a request names as targets.

    Raises:
        InvalidNodeResult: it names none.
    """
    items = goto if isinstance(goto, list) else [] if goto is None else [goto]
    if len(items) > MAX_TASKS:
        raise InvalidNodeResult(f"more than {MAX_TASKS} targets")
    return tuple(_read_target(item) for item in items)


def _read_item(item: JsonValue) -> NodeResult:
    if not isinstance(item, dict):
        raise InvalidNodeResult(
            f"a node answers an object, a list of objects or nothing, not {type_name(item)}"
        )
    if COMMAND in item:
        if len(item) > 1:
            raise InvalidNodeResult("a command has nothing beside it; its update is inside")
        return _read_command(item[COMMAND])
    if INTERRUPT in item:
        raise InvalidNodeResult("an interrupt stands alone, not in a list")
    return NodeResult(updates=(item,)) if item else NodeResult()


def _read_command(command: JsonValue) -> NodeResult:
    if not isinstance(command, dict):
        raise InvalidNodeResult(f"a command is an object, not {type_name(command)}")
    if "resume" in command:
        raise InvalidNodeResult("a node can't resume; only ResumeRun does")
    unknown = sorted(command.keys() - {"update", "goto", "graph"})
    if unknown:
        raise InvalidNodeResult(f"a command has update, goto and graph, not '{unknown[0][:40]}'")
    update = command.get("update")
    if update is not None and not isinstance(update, dict):
        raise InvalidNodeResult(f"a command's update is an object, not {type_name(update)}")
    updates = (update,) if update else ()
    goto = read_targets(command.get("goto"))
    match command.get("graph"):
        case None:
            return NodeResult(updates=updates, goto=goto, is_command=True)
        case "PARENT":
            return NodeResult(parent_updates=updates, parent_goto=goto, is_command=True)
        case _:
            raise InvalidNodeResult('a command\'s graph is "PARENT", or it is left out')


def _read_target(item: JsonValue) -> Target:
    if isinstance(item, str):
        return Target(item)
    if isinstance(item, dict) and item.keys() == {"node", "arg"} and isinstance(item["node"], str):
        return Target(item["node"], item["arg"])
    if isinstance(item, dict) and item.keys() == {"node"} and isinstance(item["node"], str):
        return Target(item["node"])
    raise InvalidNodeResult('a target is a node\'s name or {"node": name, "arg": value}')
