"""The generated code loads on every runtime that `pyproject.toml` admits."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "client" / "agenttx" / "v1"
MESSAGE_MODULES = sorted(STUBS.glob("*_pb2.py"))
SERVICE_MODULES = sorted(STUBS.glob("*_pb2_grpc.py"))


def lowest_admitted(package: str) -> tuple[int, ...]:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bounds,) = [d.removeprefix(package) for d in dependencies if re.match(rf"{package}[<>=!~]", d)]
    floor = re.search(r">=([\d.]+)", bounds)
    assert floor, bounds
    return tuple(int(part) for part in floor.group(1).split("."))


def gencode_version(module: Path) -> tuple[int, ...]:
    """The version that the module hands to ValidateProtobufRuntimeVersion, which refuses an older runtime."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "ValidateProtobufRuntimeVersion"
    ]
    return tuple(ast.literal_eval(argument) for argument in call.args[1:4])


def test_there_are_stubs_to_check():
    assert MESSAGE_MODULES
    assert SERVICE_MODULES


@pytest.mark.parametrize("module", MESSAGE_MODULES, ids=lambda path: path.name)
def test_messages_load_on_the_oldest_admitted_protobuf(module: Path):
    assert gencode_version(module) == (6, 31, 1)
    assert gencode_version(module) <= lowest_admitted("protobuf")


@pytest.mark.parametrize("module", SERVICE_MODULES, ids=lambda path: path.name)
def test_services_load_on_the_oldest_admitted_grpcio(module: Path):
    declared = re.search(r"^GRPC_GENERATED_VERSION = '([\d.]+)'$", module.read_text(), re.MULTILINE)
    assert declared, "the module declares no version"
    version = tuple(int(part) for part in declared.group(1).split("."))
    assert version <= (1, 80, 0)
    assert version[:2] <= lowest_admitted("grpcio")[:2]
