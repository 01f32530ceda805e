"""Tools of MCP servers, mounted under a prefix: ``github.create_issue`` is the tool ``create_issue`` of ``github``."""
