"""Tools found by the name of a Python object: ``--tools module:object``, and what entry points name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from agenttx.tools.definition import AnyTool, Tool, ToolDefinitionError

__all__ = ["ToolLoadError", "load_object", "load_tools"]


class ToolLoadError(ValueError):
    """A setting that names no usable tools; the text is one line for whoever started the server."""


def load_tools(specification: str) -> list[AnyTool]:
    """Import and return the tools that ``module:object`` names.

    The object is a tool, a list (or other iterable) of tools, a module, or a function without
    arguments that returns one of these; without ``:object`` it is every tool of the module. The
    working directory is searched first, as ``python -m`` does. Raises ToolLoadError.
    """
    working_directory = os.getcwd()
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    return load_object(specification, f"--tools {specification!r}")


def load_object(specification: str, named: str) -> list[AnyTool]:
    """Import and return the tools that ``module:object`` names, from what is installed.

    ``named`` is who asked for it, in the words that an error begins with. Raises ToolLoadError.
    """
    module_name, _, path = specification.partition(":")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ToolLoadError(f"{named}: expected module:object, for example my_tools:TOOLS")
    found: Any = _import(module_name, named)
    for name in path.split(".") if path else ():
        if not hasattr(found, name):
            raise ToolLoadError(f"{named}: {_name(found)} has no {name!r}")
        found = getattr(found, name)
    tools = _collect(found, named)
    if not tools:
        raise ToolLoadError(f"{named}: no tools there; make one with @tool(name, effects=...)")
    return tools


def _import(module_name: str, named: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ToolLoadError(
                f"{named}: there is no module {error.name!r} here or on PYTHONPATH"
            ) from error
        raise ToolLoadError(f"{named}: importing it failed: {_one_line(error)}") from error
    except ToolDefinitionError as error:
        raise ToolLoadError(f"{named}: {_text(error)}") from error
    except (Exception, SystemExit) as error:
        raise ToolLoadError(f"{named}: importing it failed: {_one_line(error)}") from error


def _collect(found: Any, named: str) -> list[AnyTool]:
    if isinstance(found, Tool):
        return [found]
    if isinstance(found, ModuleType):
        return list(dict.fromkeys(value for value in vars(found).values() if isinstance(value, Tool)))
    if isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
        tools = list(found.values() if isinstance(found, dict) else found)
        for member in tools:
            if not isinstance(member, Tool):
                raise ToolLoadError(f"{named}: {member!r:.80} in it is not a tool (made with @tool)")
        return tools
    if callable(found) and not isinstance(found, type):
        try:
            made = found()
        except ToolDefinitionError as error:
            raise ToolLoadError(f"{named}: {_text(error)}") from error
        except Exception as error:
            raise ToolLoadError(f"{named}: calling it failed: {_one_line(error)}") from error
        if callable(made) and not isinstance(made, Tool):
            raise ToolLoadError(f"{named}: it returned no tools but {type(made).__name__}")
        return _collect(made, named)
    raise ToolLoadError(f"{named}: {type(found).__name__} is neither a tool nor a list of tools")


def _name(found: Any) -> str:
    return f"module {found.__name__!r}" if isinstance(found, ModuleType) else f"{type(found).__name__}"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text(error)}"[:300]


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
