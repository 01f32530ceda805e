"""A small distribution as an installer leaves it: modules and a ``dist-info`` directory with entry points."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

__all__ = ["WEATHER", "install"]


def install(
    site: Path,
    name: str,
    entry_points: Mapping[str, str],
    modules: Mapping[str, str],
    *,
    version: str = "1.0",
    group: str = "agenttx.tools",
) -> None:
    """Put a distribution into a directory that is, or will be, on the import path."""
    site.mkdir(exist_ok=True)
    for module, source in modules.items():
        (site / f"{module}.py").write_text(textwrap.dedent(source))
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{entry} = {value}" for entry, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


WEATHER = """
    from agenttx.worker import tool

    STATE = {}

    @tool("weather.record", effects="compensatable")
    async def record(ctx, city: str, celsius: int) -> dict:
        await ctx.register_undo("weather.forget", city=city)
        STATE[city] = celsius
        return {"city": city, "celsius": celsius}

    @record.undo("weather.forget")
    async def forget(city):
        STATE.pop(city, None)

    @tool("weather.read", effects="read_only")
    def read() -> dict:
        return STATE

    TOOLS = [record, read]
"""
