"""Channels: reducers, types, defaults, and who names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agenttx_server.engine.json_values import MISSING, JsonValue, ValueRefused, canonical
from agenttx_server.graphs.channel_types import CHANNEL_TYPES, has_type, type_name
from agenttx_server.graphs.definition import Channel, GraphDefinition, ToolBinding
from agenttx_server.graphs.findings import Finding, found
from agenttx_server.graphs.reducers import Mismatch, Reducer, ReducerFailed, ReducerRegistry
from agenttx_server.graphs.reducers.reduction import WriteContext
from agenttx_server.graphs.templates import channels_read

__all__ = ["check_channels", "reducers_of"]


def reducers_of(graph: GraphDefinition, registry: ReducerRegistry) -> Mapping[str, Reducer]:
    """The reducer of each channel that has a known one."""
    found_reducers = {
        channel.name: registry.find(channel.reducer, channel.reducer_version) for channel in graph.channels
    }
    return {name: reducer for name, reducer in found_reducers.items() if reducer is not None}


def check_channels(graph: GraphDefinition, registry: ReducerRegistry) -> Iterator[Finding]:
    """Check every channel, and that nodes name no others."""
    for channel in graph.channels:
        yield from _check(channel, registry)
    names = {channel.name for channel in graph.channels}
    for node in graph.nodes:
        named = {"reads": node.reads, "writes": node.writes}
        if node.cache is not None:
            named["cache.key_channels"] = node.cache.key_channels
        if isinstance(node.binding, ToolBinding):
            named["output"] = tuple(node.binding.output)
            named["arguments"] = tuple(
                channel for channel, _, _ in channels_read(dict(node.binding.arguments))
            )
        for what, channels in named.items():
            for name in dict.fromkeys(channels):
                if name not in names:
                    yield found(
                        "UNKNOWN_CHANNEL", f"node {node.name}, {what}", f"there is no channel '{name}'"
                    )


def _check(channel: Channel, registry: ReducerRegistry) -> Iterator[Finding]:
    where = f"channel {channel.name}"
    if channel.type not in CHANNEL_TYPES:
        yield found(
            "REDUCER_TYPE_MISMATCH",
            where,
            f"'{channel.type}' is no type; these are: {', '.join(sorted(CHANNEL_TYPES))}",
        )
        return
    reducer = registry.find(channel.reducer, channel.reducer_version)
    if reducer is None:
        version = f" {channel.reducer_version}" if channel.reducer_version else ""
        yield found("REDUCER_UNKNOWN", where, f"this server has no reducer '{channel.reducer}{version}'")
        return
    if channel.type != "any" and channel.type not in reducer.types:
        yield found(
            "REDUCER_TYPE_MISMATCH",
            where,
            f"reducer {reducer.name} doesn't make {channel.type}, but {', '.join(sorted(reducer.types))}",
        )
    if channel.scalars and reducer.name not in ("append", "union"):
        yield found("REDUCER_TYPE_MISMATCH", where, "only append and union take scalars")
    if channel.ignore_unknown_removals and reducer.name != "messages":
        yield found("REDUCER_TYPE_MISMATCH", where, "only messages takes ignore_unknown_removals")
    if channel.default is not MISSING:
        yield from _check_default(channel, channel.default, reducer, where)


def _check_default(channel: Channel, default: JsonValue, reducer: Reducer, where: str) -> Iterator[Finding]:
    try:
        canonical(default)
    except ValueRefused as error:
        yield found("REDUCER_TYPE_MISMATCH", where, f"the default is refused: {error}")
        return
    if not has_type(default, channel.type):
        yield found(
            "REDUCER_TYPE_MISMATCH", where, f"the default is {type_name(default)}, not {channel.type}"
        )
        return
    try:
        # A default is a value of the channel, never a scalar to wrap or a message without an id.
        reduced = reducer.reduce(MISSING, default, WriteContext())
    except (Mismatch, ReducerFailed) as error:
        yield found("REDUCER_TYPE_MISMATCH", where, f"the default doesn't fit {reducer.name}: {error}")
        return
    if reduced.value != default:
        yield found("REDUCER_TYPE_MISMATCH", where, f"the default is nothing that {reducer.name} would make")
