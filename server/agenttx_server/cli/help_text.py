"""Commands and groups whose help shows switches as what they are: flags that take no value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption

__all__ = ["Command", "Group"]


class Command(TyperCommand):
    """A command of ``agenttx``."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, the switches among them without a type."""
        return _switches_without_type(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands of ``agenttx``."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, the switches among them without a type."""
        return _switches_without_type(super().get_params(ctx))


def _switches_without_type(parameters: Any) -> Any:
    # typer's help says `--json <bool>`, as if a value had to follow; an empty metavar leaves that out.
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""
    return parameters
