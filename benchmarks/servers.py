"""The two servers that are compared, each a process of its own: the real one and a bare echo.

The echo is the same gRPC server with the same options and the whole interceptor chain around
handlers that do nothing: what remains of the difference is the price of a durable step.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
QUIET = {"AGENTTX_LOG_FORMAT": "json"}


@contextlib.contextmanager
def server(kind: str, directory: Path, **settings: str) -> Iterator[str]:
    """Run a server ("agenttx", "unwatched" or "echo") and yield its address."""
    environment = os.environ | {f"AGENTTX_{name.upper()}": value for name, value in settings.items()} | QUIET
    with (directory / f"{kind}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.servers", kind, str(directory / kind)],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
            address = process.stdout.readline().strip() if ready else ""
            if not address:
                raise RuntimeError(
                    f"the {kind} server did not start: {(directory / f'{kind}.log').read_text()}"
                )
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory on a real disk (not a memory file system, whose fsync is free)."""
    base = os.environ.get("AGENTTX_BENCH_DIR", str(REPOSITORY / "build"))
    Path(base).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=base) as name:
        yield Path(name)


class _EchoServicer:
    """Answers steps with a constant; begins nothing."""

    def __init__(self, messages: Any) -> None:
        self._pb = messages

    async def ExecuteStep(self, request: Any, context: Any) -> Any:
        return self._pb.ExecuteStepResponse(status=1, next_step_id=request.step_id + 1)

    async def ExecuteSteps(self, request_iterator: Any, context: Any) -> None:
        import grpc.aio

        while (message := await context.read()) is not grpc.aio.EOF:
            response = self._pb.ExecuteStepResponse(status=1, next_step_id=message.step.step_id + 1)
            await context.write(self._pb.ExecuteStepsResponse(response=response))


async def _serve_echo(data_dir: Path) -> None:
    import grpc.aio

    from agenttx.v1 import transaction_pb2 as pb
    from agenttx_server import main
    from agenttx_server.api import server as api
    from agenttx_server.api.interceptors import Admission, InterceptorChain, Metrics
    from agenttx_server.api.listeners import listen
    from agenttx_server.api.methods import describe
    from agenttx_server.api.service_handlers import handlers
    from agenttx_server.settings import load_settings

    settings = main._api_settings(load_settings({"data_dir": data_dir, "listen": "127.0.0.1:0"}))
    chain = InterceptorChain(
        api.stages(Metrics(), Admission(settings.bounds), settings), describe, settings.max_message_bytes
    )
    echo = grpc.aio.server(interceptors=(chain,), options=api._options(settings))
    servicer: Any = _EchoServicer(pb)
    echo.add_generic_rpc_handlers((handlers(pb.DESCRIPTOR.services_by_name["AgentTxService"], servicer),))
    address, held = listen(echo, settings.address, settings.unix_socket_mode)
    with held:
        await echo.start()
        await _announce_and_wait(str(address))
        await echo.stop(0)


async def _serve_agenttx(data_dir: Path) -> None:
    from agenttx_server import main
    from agenttx_server.settings import load_settings

    async with main.open_server(load_settings({"data_dir": data_dir, "listen": "127.0.0.1:0"})) as running:
        await _announce_and_wait(running.address)
        await running.drain()


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
    await _serve_agenttx(data_dir)


async def _announce_and_wait(address: str) -> None:
    from agenttx_server import main

    main._calm_garbage_collector()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(address, flush=True)
    await stop.wait()


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("agenttx", "unwatched", "echo"))
    parser.add_argument("data_dir", type=Path)
    arguments = parser.parse_args()
    from agenttx_server import main
    from agenttx_server.api.interceptors.call import call_facts
    from agenttx_server.logging_setup import configure_logging

    configure_logging("json", "info", call_facts)
    sys.setswitchinterval(main.SWITCH_INTERVAL_SECONDS)
    serve = {"echo": _serve_echo, "unwatched": _serve_unwatched, "agenttx": _serve_agenttx}[arguments.kind]
    with asyncio.Runner(loop_factory=main._loop_factory()) as runner:
        runner.run(serve(arguments.data_dir))


if __name__ == "__main__":
    _main()
