"""What a step sees of a record, and what is copied to its output unseen: ``context_scope``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agenttx_server.lineage.definition import ContextScope

__all__ = ["observed", "passed_through"]


def observed(content: Mapping[str, Any], scope: ContextScope) -> dict[str, Any]:
    """The namespaces with the fields that are observed and not dropped."""
    if scope.observe is None:
        seen: dict[str, Any] = dict(content)
    else:
        seen = {}
        for field in scope.observe:
            namespace, _, name = field.partition(".")
            if namespace not in content:
                continue
            whole = content[namespace]
            if name == "*" or not isinstance(whole, dict):
                seen[namespace] = whole
            else:
                part = seen.setdefault(namespace, {})
                if name in whole and part is not whole:
                    part[name] = whole[name]
    for field in scope.drop:
        namespace, _, name = field.partition(".")
        if name == "*":
            seen.pop(namespace, None)
        elif isinstance(seen.get(namespace), dict):
            seen[namespace] = {key: value for key, value in seen[namespace].items() if key != name}
    return seen


def passed_through(content: Mapping[str, Any], scope: ContextScope) -> dict[str, Any]:
    """The fields that are copied to the output; dropped ones are not."""
    kept = observed(content, ContextScope(scope.passthrough, (), scope.drop))
    return {
        name: value
        for namespace in kept.values()
        if isinstance(namespace, dict)
        for name, value in namespace.items()
    }
