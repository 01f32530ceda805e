"""The import rule that import-linter cannot state: a list of what is allowed, where it knows lists of what is not."""

import ast
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2] / "server" / "agenttx_server" / "engine"
ALLOWED = sys.stdlib_module_names | {"agenttx_server", "orjson", "rustworkx"}


def imported_roots(module: Path) -> set[str]:
    roots = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.partition(".")[0])
    return roots


def test_the_engine_imports_the_standard_library_rustworkx_and_orjson_only():
    strangers = {
        str(module.relative_to(ENGINE)): foreign
        for module in sorted(ENGINE.rglob("*.py"))
        if (foreign := imported_roots(module) - ALLOWED)
    }
    assert strangers == {}


def test_only_the_dependency_graph_imports_rustworkx():
    importers = {
        m.relative_to(ENGINE).as_posix() for m in ENGINE.rglob("*.py") if "rustworkx" in imported_roots(m)
    }
    assert importers <= {"dependency_graph.py"}
