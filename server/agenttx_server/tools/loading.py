"""Tools named on the command line: ``--tools module:object`` or ``--tools module``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from agenttx_server.tools.definition import AnyTool, Tool, ToolDefinitionError

__all__ = ["ToolLoadError", "load_tools"]


class ToolLoadError(ValueError):
    """A ``--tools`` value that names nothing usable; the text is one line for whoever started the server."""


def load_tools(specification: str) -> list[AnyTool]:
    """Import and return the tools that ``module:object`` names.

    The object is a tool, a list (or other iterable) of tools, a module, or a function without
    arguments that returns one of these; without ``:object`` it is every tool of the module. The
    working directory is searched first, as ``python -m`` does. Raises ToolLoadError.
    """
    module_name, _, path = specification.partition(":")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ToolLoadError(f"--tools {specification!r}: expected module:object, for example my_tools:TOOLS")
    found: Any = _import(module_name, specification)
    for name in path.split(".") if path else ():
        if not hasattr(found, name):
            raise ToolLoadError(f"--tools {specification!r}: {_name(found)} has no {name!r}")
        found = getattr(found, name)
    tools = _collect(found, specification)
    if not tools:
        raise ToolLoadError(
            f"--tools {specification!r}: no tools there; make one with @tool(name, effects=...)"
        )
    return tools


def _import(module_name: str, specification: str) -> ModuleType:
    working_directory = os.getcwd()
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ToolLoadError(
                f"--tools {specification!r}: there is no module {error.name!r} here or on PYTHONPATH"
            ) from error
        raise ToolLoadError(f"--tools {specification!r}: importing it failed: {_one_line(error)}") from error
    except ToolDefinitionError as error:
        raise ToolLoadError(f"--tools {specification!r}: {_text(error)}") from error
    except (Exception, SystemExit) as error:
        raise ToolLoadError(f"--tools {specification!r}: importing it failed: {_one_line(error)}") from error


def _collect(found: Any, specification: str) -> list[AnyTool]:
    if isinstance(found, Tool):
        return [found]
    if isinstance(found, ModuleType):
        return list(dict.fromkeys(value for value in vars(found).values() if isinstance(value, Tool)))
    if isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
        tools = list(found.values() if isinstance(found, dict) else found)
        for member in tools:
            if not isinstance(member, Tool):
                raise ToolLoadError(
                    f"--tools {specification!r}: {member!r:.80} in it is not a tool (made with @tool)"
                )
        return tools
    if callable(found) and not isinstance(found, type):
        try:
            made = found()
        except ToolDefinitionError as error:
            raise ToolLoadError(f"--tools {specification!r}: {_text(error)}") from error
        except Exception as error:
            raise ToolLoadError(
                f"--tools {specification!r}: calling it failed: {_one_line(error)}"
            ) from error
        if callable(made) and not isinstance(made, Tool):
            raise ToolLoadError(f"--tools {specification!r}: it returned no tools but {type(made).__name__}")
        return _collect(made, specification)
    raise ToolLoadError(
        f"--tools {specification!r}: {type(found).__name__} is neither a tool nor a list of tools"
    )


def _name(found: Any) -> str:
    return f"module {found.__name__!r}" if isinstance(found, ModuleType) else f"{type(found).__name__}"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text(error)}"[:300]


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
