"""Histories of whole clusters, each from a seed: the second half."""

from __future__ import annotations

import pytest
from tests.simulation.chunks import CHUNKS, assert_chunk_holds


@pytest.mark.parametrize("chunk", CHUNKS[1::2])
def test_histories_hold_the_invariants(chunk: int) -> None:
    assert_chunk_holds(chunk)
