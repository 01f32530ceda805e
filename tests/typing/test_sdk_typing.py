"""The SDK's types hold for a user who checks strictly, and find a user's mistakes."""

import subprocess
import sys
from pathlib import Path

import agenttx

SAMPLE = Path(__file__).with_name("sdk_usage.py")


def test_user_code_passes_a_strict_type_check(tmp_path: Path):
    # A configuration of the user's own (none), so that this project's settings help nothing.
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(SAMPLE)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_public_name_is_there_and_is_listed():
    listed = set(dir(agenttx))
    for name in agenttx.__all__:
        assert getattr(agenttx, name) is not None
        assert name in listed


def test_importing_the_package_imports_neither_grpc_nor_protobuf():
    # The `agenttx` command sets grpc's verbosity before grpc is imported, and starts fast.
    code = (
        "import agenttx, sys; print([m for m in ('grpc', 'google.protobuf', 'orjson') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert printed.stdout.strip() == "[]"


def test_the_sdk_works_without_the_servers_libraries():
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {'agenttx_server', 'grpc_health', 'grpc_reflection', 'pydantic', 'rustworkx',
                                      'sqlalchemy', 'structlog', 'typer', 'rich', 'uvloop'}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import agenttx
[getattr(agenttx, name) for name in agenttx.__all__]
agenttx.Client().close()
print('fine')
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert printed.stdout.strip() == "fine"
