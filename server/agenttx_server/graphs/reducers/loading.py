"""Custom reducers found by the name of a Python object: ``--reducers module:object``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from agenttx_server.graphs.reducers.custom import CustomReducer

__all__ = ["ReducerLoadError", "load_reducers"]


class ReducerLoadError(ValueError):
    """A setting that names no usable reducers; the text is one line for whoever started the server."""


def load_reducers(specification: str) -> tuple[CustomReducer, ...]:
    """Import and return the reducers that ``module:object`` names.

    The object is a reducer (made with ``@reducer``), an iterable of reducers, or a module; without
    ``:object`` it is every reducer of the module. The working directory is searched first.

    Raises:
        ReducerLoadError: there are none, or importing failed.
    """
    module_name, _, path = specification.partition(":")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise _refused(specification, "expected module:object, for example my_reducers:longest")
    working_directory = os.getcwd()
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())[:300]
        raise _refused(specification, f"importing it failed: {type(error).__name__}: {reason}") from error
    for name in path.split(".") if path else ():
        if not hasattr(found, name):
            raise _refused(specification, f"there is no {name!r} in it")
        found = getattr(found, name)
    reducers = _collected(found)
    if not reducers:
        raise _refused(specification, "no reducers there; make one with @reducer(name, version=...)")
    return reducers


def _collected(found: Any) -> tuple[CustomReducer, ...]:
    if isinstance(found, CustomReducer):
        return (found,)
    if isinstance(found, ModuleType):
        found = vars(found).values()
    elif not isinstance(found, Iterable) or isinstance(found, str | bytes):
        return ()
    return tuple(dict.fromkeys(value for value in found if isinstance(value, CustomReducer)))


def _refused(specification: str, reason: str) -> ReducerLoadError:
    return ReducerLoadError(f"--reducers {specification!r}: {reason}")
