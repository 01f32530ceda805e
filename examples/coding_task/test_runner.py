"""The tool that runs the project's tests, for a worker on the machine that has the files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from agenttx.worker import AnyTool, BlockingToolCallContext, ToolFailure, tool

_FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+) \(test_(\w+)\.", re.MULTILINE)
_REASON = re.compile(r"^(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


def test_runner(project: Path) -> AnyTool:
    """Return the tool for a project in a folder."""

    @tool("code.test", effects="read_only", timeout_seconds=60)
    def run_tests(ctx: BlockingToolCallContext, money_path: str, cart_path: str) -> dict[str, str]:
        """Run the tests of the modules `money` and `cart`, which are at these paths."""
        paths = {"money": money_path, "cart": cart_path}
        command = [sys.executable, "-B", "-m", "unittest"]
        with subprocess.Popen(
            command, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            while process.poll() is None:
                if ctx.wait_cancelled(0.05):
                    process.kill()
                    raise ToolFailure("cancelled", "the tests were stopped")
            assert process.stderr is not None
            report = process.stderr.read()
        if process.returncode == 0:
            return {"result": "all tests pass"}
        failed = _FAILED.findall(report)
        tests = ", ".join(name for name, _ in failed) or "the tests"
        reason = _REASON.search(report)
        at_fault = dict.fromkeys(module for _, module in failed if module in paths)
        files = ", ".join(paths[module] for module in at_fault) or "the project"
        # By these keys the server finds the step that wrote the file at fault.
        keys = tuple(f"{module}_path" for module in at_fault)
        raise ToolFailure(
            "assertion", f"{tests} failed: {reason[2] if reason else report[-200:]}. Correct {files}.", keys
        )

    return run_tests
