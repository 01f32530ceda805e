"""From an MCP server's answer to a step's output, or to its failure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

import mcp_types as types

from agenttx_server.engine import json_values
from agenttx_server.engine.ports import ReportedFailure, ToolFailure
from agenttx_server.engine.records import HintCategory

__all__ = ["output_of", "raise_if_failed"]

MOST_INLINE_BYTES = 64 * 1024
"""Of an image or another binary; larger ones are told by size and hash only."""
MOST_ERROR = 64 * 1024


def raise_if_failed(result: types.CallToolResult) -> None:
    """Raise what a result says that is marked as an error.

    Structured content with a ``message`` and a ``category`` of ours, or ``keys``, is taken at its word; any other
    error is text for the hint rules.
    """
    if not result.is_error:
        return
    structured = result.structured_content
    told = structured.get("error", structured) if isinstance(structured, dict) else None
    if isinstance(told, dict) and isinstance(told.get("message"), str):
        category, keys = told.get("category"), told.get("keys")
        if category in set(HintCategory):
            named = [str(key) for key in keys] if isinstance(keys, list) else []
            raise ToolFailure(str(category), told["message"][:MOST_ERROR], named[:8])
        raise ReportedFailure(told["message"][:MOST_ERROR])
    text = "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))
    raise ReportedFailure((text or "the tool failed and did not say why")[:MOST_ERROR])


def output_of(result: types.CallToolResult) -> Any:
    """Return what a call returned: its structured content, else its text, as JSON where it is JSON."""
    if result.structured_content is not None:
        return result.structured_content
    if all(isinstance(block, types.TextContent) for block in result.content):
        texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
        return _parsed(texts[0]) if len(texts) == 1 else "\n".join(texts)
    return {"content": [_block(block) for block in result.content]}


def _parsed(text: str) -> Any:
    if text[:1].strip() not in set('{["-0123456789tfn'):
        return text
    try:
        return json_values.parse(text)
    except json_values.ValueRefused:
        return text


def _block(block: types.ContentBlock) -> dict[str, Any]:
    match block:
        case types.TextContent():
            return {"type": "text", "text": block.text}
        case types.ImageContent() | types.AudioContent():
            return {"type": block.type, **_binary(block.data, block.mime_type)}
        case types.ResourceLink():
            return {
                "type": "resource_link",
                "uri": str(block.uri),
                "name": block.name,
                "mime_type": block.mime_type,
            }
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return {"type": "resource", "uri": str(resource.uri), "text": resource.text}
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            return {
                "type": "resource",
                "uri": str(resource.uri),
                **_binary(resource.blob, resource.mime_type),
            }
    return {"type": "unknown"}


def _binary(data: str, mime_type: str | None) -> dict[str, Any]:
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return {"mime_type": mime_type, "size_bytes": None, "sha256": None, "data": None}
    return {
        "mime_type": mime_type,
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "data": data if len(content) <= MOST_INLINE_BYTES else None,
    }
