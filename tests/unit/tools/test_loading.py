import sys
import textwrap
from pathlib import Path

import pytest

from agenttx_server.tools import ToolLoadError, load_tools

SOURCE = """
    from agenttx_server.tools import tool

    @tool("own.one", effects="read_only")
    def one(): ...

    @tool("own.two", effects="read_only")
    def two(): ...

    ALL = [two, one]
    BY_NAME = {"two": two}
    MIXED = [one, len]
    EMPTY = []
    NUMBER = 5

    def make():
        return [one]

    def misdefine():
        return tool("bad name", effects="read_only")(fail)

    def fail():
        raise ValueError("no\\nconfiguration")

    class Group:
        tools = (one,)
"""


@pytest.fixture
def own_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory, as a user has it."""
    name = f"own_tools_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return name


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("one", ["own.one"]),
        ("ALL", ["own.two", "own.one"]),
        ("BY_NAME", ["own.two"]),
        ("make", ["own.one"]),
        ("Group.tools", ["own.one"]),
        ("", ["own.one", "own.two"]),
    ],
)
def test_tools_are_found_in_the_working_directory(own_tools, path, names):
    specification = f"{own_tools}:{path}" if path else own_tools

    assert [tool.name for tool in load_tools(specification)] == names


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "has no 'nothing'"),
        ("MIXED", "<built-in function len> in it is not a tool"),
        ("EMPTY", "no tools there"),
        ("NUMBER", "int is neither a tool nor a list of tools"),
        ("fail", "calling it failed: ValueError: no configuration"),
        ("misdefine", "misdefine': a tool's name is 1 to 128 characters"),
        ("Group", "type is neither"),
        ("Group.none", "has no 'none'"),
    ],
)
def test_an_object_that_is_no_tool_is_refused_in_one_line(own_tools, path, message):
    with pytest.raises(ToolLoadError) as refused:
        load_tools(f"{own_tools}:{path}")

    assert message in str(refused.value)
    assert f"--tools '{own_tools}:{path}'" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("specification", "message"),
    [
        ("", "expected module:object"),
        (":tools", "expected module:object"),
        ("my-module:tools", "expected module:object"),
        ("no_such_module_at_all:tools", "there is no module 'no_such_module_at_all'"),
        ("json.no_such_part:tools", "there is no module 'json.no_such_part'"),
    ],
)
def test_a_module_that_there_is_not_is_refused_in_one_line(specification, message):
    with pytest.raises(ToolLoadError) as refused:
        load_tools(specification)

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_library_either", "importing it failed: ModuleNotFoundError: No module named"),
        ("1 / 0", "importing it failed: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "importing it failed: SystemExit: 3"),
        ("def broken(:", "importing it failed: SyntaxError"),
        (
            "from agenttx_server.tools import tool\n@tool('bad name', effects='read_only')\ndef f(): ...",
            "': a tool's name is 1 to 128 characters",
        ),
    ],
)
def test_a_module_that_fails_is_told_in_one_line(tmp_path, monkeypatch, source, message):
    name = f"failing_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ToolLoadError) as refused:
        load_tools(name)

    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
