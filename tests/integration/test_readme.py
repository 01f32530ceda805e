"""The README's commands work as printed, against the real server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.running_server import ServerProcess, server_process

ROOT = Path(__file__).resolve().parents[2]
PRINTED_ADDRESS = "127.0.0.1:50051"


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("readme")) as process:
        yield process


def run(command: list[str], text: str, server: ServerProcess) -> str:
    done = subprocess.run(
        command,
        input=text.replace(PRINTED_ADDRESS, server.address),
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "AGENTTX_ADDRESS": server.address},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_goes_back_to_the_wrong_choice_and_commits(server: ServerProcess) -> None:
    (example,) = blocks("python")

    printed = run([sys.executable, "-"], example, server)

    assert "customer_id" in printed.splitlines()[0]
    assert printed.splitlines()[1].split() == ["DEPENDENCY_JUMP", "2"]


def test_the_python_example_can_be_run_again(server: ServerProcess) -> None:
    (example,) = blocks("python")

    assert run([sys.executable, "-"], example, server)
    assert run([sys.executable, "-"], example, server)


@pytest.mark.skipif(
    shutil.which("grpcurl", path=str(Path(sys.executable).parent)) is None, reason="grpcurl is not installed"
)
def test_the_grpcurl_session_works_as_printed(server: ServerProcess) -> None:
    (session,) = (block for block in blocks("sh") if "grpcurl" in block)

    printed = run(["bash", "-eu", "-o", "pipefail"], session, server)

    assert "agenttx.v1.AgentTxService" in printed
    assert "STEP_STATUS_ROLLBACK_TRIGGERED" in printed
    assert "ROLLBACK_STRATEGY_DEPENDENCY_JUMP" in printed
    assert '"committed": true' in printed
    assert "none today" in printed
