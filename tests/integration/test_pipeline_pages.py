"""The pages about pipelines and lineage, and their example, do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.running_server import PYTHONPATH, REPOSITORY, ServerProcess, server_process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("data")) as process:
        yield process


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("pipelines", ["True ('keep', 'read')", "COMPLETED 3", "note 0", "note 1", "note 2"]),
        (
            "lineage",
            [
                "['source', 'put', 'left', 'right']",
                "['MERGE', 'MERGE']",
                "both",
                "True",
                "kv.get 2 False",
                "kv.put 1 True",
                "True",
            ],
        ),
    ],
)
def test_the_page_does_what_it_says(
    server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: str,
    told: list[str],
):
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    code = "".join(blocks)
    monkeypatch.setenv("AGENTTX_ADDRESS", server.address)

    exec(code, {})

    assert capsys.readouterr().out.splitlines() == told


def test_the_example_runs_the_pipeline_of_the_page(server: ServerProcess):
    example = REPOSITORY / "examples" / "catalog_pipeline.py"
    (shown,) = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs" / "pipelines.md").read_text(), re.DOTALL)
    assert shown == re.search(r'PIPELINE = """\n(.*?)"""', example.read_text(), re.DOTALL)[1].replace(  # type: ignore[index]
        ", on_failure: rollback", ""
    )
    done = subprocess.run(
        [sys.executable, example, server.address],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("COMPLETED_WITH_FAILURES: 2 of 3 books; row 2: ")
    assert rest == [
        "The Fox: the fox; the fox; the grapes",
        "Der Fuchs: der fuchs; der fuchs",
        "levels: [{'level': 'easy'}, None]",
        "score came of: source, validate, keywords, level",
        "22 records, 0 breaches",
    ]
