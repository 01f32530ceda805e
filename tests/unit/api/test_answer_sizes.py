"""Pages are cut until they fit."""

import pytest

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.answer_sizes import PAGE_BYTES, page_that_fits


@pytest.mark.parametrize(
    ("entry_bytes", "limit", "expected"),
    [(10, 1000, 1000), (1_000_000, 1000, 3), (9_000_000, 1000, 1), (10, 1, 1)],
)
async def test_a_page_is_no_larger_than_a_page_may_be(entry_bytes, limit, expected):
    asked = []

    async def ask(entries):
        asked.append(entries)
        tools = [pb.ToolDescription(description="x" * entry_bytes)] * min(
            entries, 20 if expected < 20 else 1000
        )
        return pb.ListToolsResponse(tools=tools), len(tools)

    page = await page_that_fits(ask, limit)

    assert 1 <= len(page.tools) <= expected
    assert page.ByteSize() <= PAGE_BYTES or len(page.tools) == 1
    assert len(asked) <= 3


async def test_an_empty_page_is_a_page():
    async def ask(entries):
        return pb.ListToolsResponse(), 0

    assert await page_that_fits(ask, 100) == pb.ListToolsResponse()
