"""docs/mcp.md says what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from agenttx_server.mcp_server.client_configuration import ClientName, ServerCommand, configuration
from agenttx_server.mcp_server.server import INSTRUCTIONS, tool_names

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "mcp.md").read_text()


def test_the_documented_tools_are_those_there_are():
    table = PAGE.partition("## The tools")[2].partition("An answer is")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == tool_names()
    assert [name for name in tool_names() if name not in INSTRUCTIONS + "rewind get_transaction"] == []


def test_the_documented_configuration_is_the_one_that_is_printed():
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    server = ServerCommand("/opt/agenttx/bin/agenttx", ["mcp", "--address", "127.0.0.1:50051"])
    assert json.loads(block) == json.loads(configuration(ClientName.GENERIC, server).text)


def test_the_documented_clients_are_those_there_are():
    assert [client for client in ClientName if f"`{client}`" not in PAGE and f" {client}\n" not in PAGE] == []
