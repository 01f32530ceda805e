"""The two servers that are compared, each a process of its own: the real one and a bare echo.

The echo is the same server with the same options and the whole interceptor chain, whose handlers of steps do
nothing: what remains of the difference is the price of a durable step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.02
# What a server can do is measured with more work than it can do: none is refused.
MORE_THAN_IT_CAN_DO = {"overload_step_seconds": "0"}


@contextlib.contextmanager
def server(kind: str, directory: Path, **settings: str) -> Iterator[str]:
    """Run a server ("agenttx", "unwatched", "otlp" or "echo") with its data and log in a directory, and yield its address.

    The real one is ``agenttx serve``; settings go to it by name, ``failpoints`` too.
    """
    directory.mkdir(parents=True, exist_ok=True)
    given = {"listen": "127.0.0.1:0", "data_dir": str(directory / kind), "log_format": "json"}
    given |= MORE_THAN_IT_CAN_DO | settings
    environment = os.environ | {f"AGENTTX_{name.upper()}": value for name, value in given.items()}
    command = (
        [str(Path(sys.executable).with_name("agenttx")), "serve"]
        if kind == "agenttx"
        else [sys.executable, "-m", "benchmarks.servers", kind, str(directory / kind)]
    )
    log_path = directory / f"{kind}.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=log)
        try:
            yield _address(process, log_path, int(given.get("workers", 1)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=STOP_SECONDS)


def _address(process: subprocess.Popen[bytes], log: Path, processes: int) -> str:
    """Wait until so many processes have logged that they serve; return where."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        lines = [
            line for line in log.read_text().splitlines() if '"serving"' in line and line.startswith("{")
        ]
        if len(lines) >= processes:
            return str(json.loads(lines[0])["address"])
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(POLL_SECONDS)


def server_process(address: str) -> int:
    """Return the process that listens on an address of this machine."""
    port = int(address.rpartition(":")[2])
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in map(str.split, Path(table).read_text().splitlines()[1:])
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    }
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                links = [os.readlink(link) for link in (process / "fd").iterdir()]
            except (FileNotFoundError, PermissionError):
                continue
            if any(
                link.removeprefix("socket:[").rstrip("]") in inodes for link in links if "socket:" in link
            ):
                return int(process.name)
    raise RuntimeError(f"no process listens on port {port}")


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory on a real disk (not a memory file system, whose fsync is free)."""
    base = os.environ.get("AGENTTX_BENCH_DIR", str(REPOSITORY / "build"))
    Path(base).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=base) as name:
        yield Path(name)


async def _serve_echo(data_dir: Path) -> None:
    """The server with steps answered at once: with the fields that a ``kv.put`` is answered with, and the arguments as output.

    So there are nearly as many bytes on the wire, there and back (161 and 80; a step whose arguments came from another one's
    output is answered with 99).
    """
    import grpc.aio

    from agenttx.v1 import transaction_pb2 as pb
    from agenttx_server.api.agenttx_servicer import AgentTxServicer

    def fill(answer: Any, request: Any) -> None:
        answer.status = pb.STEP_STATUS_SUCCESS
        answer.strategy = pb.ROLLBACK_STRATEGY_NONE
        answer.output_json = request.arguments_json
        answer.next_step_id = request.step_id + 1
        answer.attempt = answer.generation = 1

    async def execute_step(self: Any, request: Any, context: Any) -> Any:
        answer = pb.ExecuteStepResponse()
        fill(answer, request)
        return answer

    async def execute_steps(self: Any, request_iterator: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            answer = pb.ExecuteStepsResponse()
            fill(answer.response, message.step)
            await context.write(answer)

    AgentTxServicer.ExecuteStep = execute_step  # type: ignore[method-assign]
    AgentTxServicer.ExecuteSteps = execute_steps  # type: ignore[method-assign]
    await _serve(data_dir)


async def _serve_otlp(data_dir: Path) -> None:
    """A receiver of traces that throws them away."""
    import grpc.aio

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            async def take(request: bytes, context: Any) -> bytes:
                return b""

            return grpc.unary_unary_rpc_method_handler(take)

    receiver = grpc.aio.server()
    receiver.add_generic_rpc_handlers((Handler(),))
    port = receiver.add_insecure_port("127.0.0.1:0")
    await receiver.start()
    await _announce_and_wait(f"127.0.0.1:{port}")
    await receiver.stop(0)


async def _serve_unwatched(data_dir: Path) -> None:
    """The server without its stages that find out who calls and that count calls: everybody is anonymous."""
    from agenttx_server.access.identity import ANONYMOUS
    from agenttx_server.api import server as api

    class Anonymous:
        name = "authentication"

        def enter(self, call: Any) -> None:
            call.identity = ANONYMOUS

        def leave(self, call: Any) -> None:
            pass

    whole = api.stages

    def stages(*arguments: Any) -> Any:
        kept = [stage for stage in whole(*arguments) if stage.name != "metrics"]
        return tuple(Anonymous() if stage.name == "authentication" else stage for stage in kept)

    api.stages = stages  # type: ignore[assignment]
    await _serve(data_dir)


async def _serve(data_dir: Path) -> None:
    """Serve as ``agenttx serve`` does, until SIGTERM."""
    from agenttx_server import main
    from agenttx_server.settings import load_settings

    settings = load_settings({"data_dir": data_dir, "listen": "127.0.0.1:0"})
    async with main.open_server(settings) as running:
        await _announce_and_wait(running.address)
        await running.drain()


async def _announce_and_wait(address: str) -> None:
    import structlog

    from agenttx_server import main

    main._calm_garbage_collector()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    structlog.get_logger().info("serving", address=address)
    await stop.wait()


def _main() -> None:
    from agenttx_server import main
    from agenttx_server.api.interceptors.call import call_facts
    from agenttx_server.logging_setup import configure_logging

    configure_logging("json", "info", call_facts)
    sys.setswitchinterval(main.SWITCH_INTERVAL_SECONDS)
    serve = {"echo": _serve_echo, "unwatched": _serve_unwatched, "otlp": _serve_otlp}[sys.argv[1]]
    with asyncio.Runner(loop_factory=main._loop_factory()) as runner:
        runner.run(serve(Path(sys.argv[2])))


if __name__ == "__main__":
    _main()
