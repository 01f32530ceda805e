"""Prompts: Jinja templates over a record's namespaces, in jinja2's immutable sandbox and in bounded work.

A loop runs over what the record holds only: ``range`` is not there, and loops nest twice at most, so that no template of
a few bytes keeps a core for hours. A skipped namespace is null, which is false in ``{% if %}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agenttx_server.lineage.limits import MAX_PROMPT_BYTES, MAX_RENDERED_BYTES

__all__ = ["Prompt", "PromptInvalid", "PromptUnrendered"]

_MAX_LOOPS: Final = 2
_REFUSED: Final = ("Include", "Import", "FromImport", "Extends", "Block", "Macro", "CallBlock")


class PromptInvalid(Exception):
    """The text is no template that is accepted; ``message`` is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class PromptUnrendered(Exception):
    """The template has no text for these values; ``message`` is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Prompt:
    """A template, compiled. ``namespaces`` are the names that it reads."""

    def __init__(self, text: str) -> None:
        # Only now: a server whose pipelines have no prompts needs no template engine.
        import jinja2
        from jinja2 import meta, nodes
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if len(text.encode("utf-8", "replace")) > MAX_PROMPT_BYTES:
            raise PromptInvalid(f"longer than {MAX_PROMPT_BYTES:,} bytes")
        environment = ImmutableSandboxedEnvironment(autoescape=False, keep_trailing_newline=True)
        environment.globals.clear()
        try:
            tree = environment.parse(text)
            for name in _REFUSED:
                if next(tree.find_all(getattr(nodes, name)), None) is not None:
                    raise PromptInvalid(f"'{name.lower()}' is not for prompts")
            if _loops(tree, nodes.For) > _MAX_LOOPS:
                raise PromptInvalid(f"loops nest deeper than {_MAX_LOOPS}")
            self.namespaces = frozenset(meta.find_undeclared_variables(tree))
            self._template: Any = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise PromptInvalid(f"line {error.lineno}: {(error.message or 'no template')[:200]}") from None
        except (jinja2.TemplateError, RecursionError) as error:
            raise PromptInvalid(str(error)[:200] or "nested too deep") from None

    def render(self, namespaces: Mapping[str, Any]) -> str:
        """Render over these namespaces.

        Raises:
            PromptUnrendered: a field of what is not there is read, or the text would be too long.
        """
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(dict(namespaces)):
                parts.append(part)
                size += len(part)
                if size > MAX_RENDERED_BYTES:
                    raise PromptUnrendered(f"the prompt is longer than {MAX_RENDERED_BYTES:,} characters")
        except PromptUnrendered:
            raise
        except Exception as error:
            # A template is code of a user's: whatever it raises is its own mistake.
            raise PromptUnrendered(
                f"the prompt can't be rendered: {str(error)[:200] or type(error).__name__}"
            ) from None
        return "".join(parts)


def _loops(node: Any, kind: type) -> int:
    below = max((_loops(child, kind) for child in node.iter_child_nodes()), default=0)
    return below + isinstance(node, kind)
