"""The page about agent frameworks holds: its examples run, in order, against a server that was just started."""

import re
from pathlib import Path

import pytest
from tests.support.running_server import server_process

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"


def test_every_example_of_the_page_runs(tmp_path: Path):
    pytest.importorskip("langchain", reason="the extra `langchain` is not installed")
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "integrations_page"}
    with server_process(tmp_path / "data") as server:
        for number, example in enumerate(examples, 1):
            code = example.replace("127.0.0.1:50051", server.address)
            exec(compile(code, f"{PAGE.name}, example {number}", "exec"), names)
    assert len(examples) == 2
