"""What a node's function answers, beside a plain update (a dictionary of channels).

return {"value": 1}                                        an update
return Command(update={"value": 1}, goto=["b", Send("c", 3)])
return {"log": Overwrite(["only this"]), "messages": RemoveMessage("m-1")}

`Continue`, `Route` and `End` say the same in words: go on along the edges, go to a node, end the path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "REMOVE_ALL_MESSAGES",
    "Command",
    "Continue",
    "End",
    "Overwrite",
    "RemoveMessage",
    "Route",
    "Send",
    "result_as_json",
]

_END = "__end__"


@dataclass(frozen=True, slots=True)
class Send:
    """Run a node once with an argument of its own, beside whatever else runs it.

    Attributes:
        node: The node.
        arg: What its function gets as `ctx.arg`; any JSON value.
    """

    node: str
    arg: Any


@dataclass(frozen=True, slots=True)
class Command:
    """An update, and where to go: for nodes that route by commands.

    Attributes:
        update: The channels to write.
        goto: A node's name, a `Send`, or several of them. Nothing: the path ends.
        parent: True: for the graph that embeds this one.
    """

    update: Mapping[str, Any] = field(default_factory=dict)
    goto: str | Send | Sequence[str | Send] = ()
    parent: bool = False


@dataclass(frozen=True, slots=True)
class Continue:
    """An update, and on along the node's edges: the same as returning the update.

    Attributes:
        update: The channels to write.
    """

    update: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """An update, and on to a node: a `Command` with one target, for nodes that route by commands.

    Attributes:
        label: The node, one of the destinations that this one declares.
        update: The channels to write.
    """

    label: str
    update: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """An update, and the path ends: a `Command` to END, for nodes that route by commands.

    Attributes:
        update: The channels to write.
    """

    update: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Overwrite:
    """In an update: the channel's new value, whatever is there and whatever siblings write."""

    value: Any


@dataclass(frozen=True, slots=True)
class RemoveMessage:
    """In an update of a messages channel: remove the message of this id."""

    message_id: str


REMOVE_ALL_MESSAGES: Mapping[str, Any] = {"__remove_all__": True}
"""In an update of a messages channel: remove all that came before."""


def result_as_json(result: Any) -> Any:
    """Return what a function answered as the JSON value that the server reads; other values are left as they are."""
    match result:
        case Command():
            targets = [result.goto] if isinstance(result.goto, str | Send) else list(result.goto)
            command: dict[str, Any] = {"goto": [_target(target) for target in targets]}
            if result.update:
                command["update"] = result_as_json(result.update)
            if result.parent:
                command["graph"] = "PARENT"
            return {"__command__": command}
        case Continue():
            return result_as_json(result.update)
        case Route():
            return result_as_json(Command(result.update, str(result.label)))
        case End():
            return result_as_json(Command(result.update, _END))
        case Send():
            return _target(result)
        case Overwrite():
            return {"__overwrite__": result_as_json(result.value)}
        case RemoveMessage():
            return {"__remove__": result.message_id}
        case Mapping():
            return {key: result_as_json(value) for key, value in result.items()}
        case list() | tuple():
            return [result_as_json(item) for item in result]
        case _:
            return result


def _target(target: str | Send) -> Any:
    return {"node": target.node, "arg": result_as_json(target.arg)} if isinstance(target, Send) else target
