"""`agenttx pipeline` and `agenttx lineage` at a real server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.support.cli_calls import CommandLine
from tests.support.pipeline_process import PIPELINE
from tests.support.running_server import ServerProcess, server_process

KEEPING = 'pipeline: keeping\nactions:\n  - {name: a, tool: pipe.keep, args: {n: "${source.n}"}}\n'
DIAMOND = """
pipeline: seed
actions:
  - {name: extract, tool: pipe.keep, args: {n: "${source.n}"}}
  - {name: branch_a, tool: pipe.keep, dependencies: [extract], args: {n: 1}}
  - {name: branch_b, tool: pipe.keep, dependencies: [extract], args: {n: 2}}
  - {name: branch_c, tool: pipe.keep, dependencies: [extract], args: {n: 3}}
  - {name: merge, tool: pipe.keep, dependencies: [branch_a, branch_b, branch_c], args: {n: 4}}
  - {name: chunk_document, tool: pipe.chunk, dependencies: [merge], args: {n: 5}}
  - {name: process_chunk, tool: pipe.keep, dependencies: [chunk_document], args: {n: 6}}
"""
# Those of the page on debugging record lineage, unchanged.
ANCESTRY = """
  SELECT json_extract(r.value, '$.source_guid'),
         json_extract(r.value, '$.target_id'),
         json_extract(r.value, '$.parent_target_id'),
         json_extract(r.value, '$.root_target_id'),
         json_extract(r.value, '$.lineage')
  FROM target_data t, json_each(t.data) r
  WHERE t.action_name = 'merge'
  LIMIT 1
"""
SIBLINGS = """
  SELECT t.action_name, json_extract(r.value, '$.parent_target_id')
  FROM target_data t, json_each(t.data) r
  WHERE t.action_name IN ('branch_a', 'branch_b', 'branch_c')
"""
ROOTS = """
  SELECT DISTINCT json_extract(r.value, '$.root_target_id')
  FROM target_data t, json_each(t.data) r
  WHERE t.action_name = 'process_chunk'
"""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(data_dir: Path):
    with server_process(data_dir, tools="tests.support.pipeline_tools") as process:
        yield process


@pytest.fixture
def agenttx(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(server.address, capsys)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "killed.yaml").write_text(PIPELINE)
    (tmp_path / "keeping.yaml").write_text(KEEPING)
    (tmp_path / "seed.yaml").write_text(DIAMOND)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(3)))
    (tmp_path / "bad.jsonl").write_text('{"n": 1}\n{"n": -1}\n')
    (tmp_path / "rows.json").write_text(json.dumps([{"n": 5}, {"n": 6}]))
    return tmp_path


def test_a_pipeline_is_checked_kept_and_drawn(agenttx: CommandLine, files: Path):
    valid = agenttx("pipeline", "validate", str(files / "killed.yaml"))
    assert valid.code == 0
    assert valid.out.startswith("killed can run: validate -> ")
    (files / "wrong.yaml").write_text("pipeline: w\nactions:\n  - {name: a, dependencies: [b]}\n")
    wrong = agenttx("pipeline", "validate", str(files / "wrong.yaml"))
    assert wrong.code == 1
    assert "there is no action 'b'" in wrong.out
    (files / "shape.yaml").write_text("- 1\n")
    shape = agenttx("pipeline", "validate", str(files / "shape.yaml"))
    assert "'actions[0]' must be an object" in shape.out
    assert "INVALID_NAME" not in shape.out
    assert agenttx("pipeline", "register", str(files / "killed.yaml")).code == 0
    again = agenttx("pipeline", "register", str(files / "killed.yaml"))
    assert again.out.endswith("(as before)\n")
    tree = agenttx("pipeline", "show", "killed").out.splitlines()[1:]
    assert tree == [
        "source",
        "└── validate (pipe.keep)",
        "    ├── chunk (pipe.chunk)",
        "    │   └── booked (pipe.book)",
        "    │       └── merge (pipe.keep)  with level",
        "    │           └── total (pipe.total)  by root",
        "    └── level (pipe.keep)  if validate.n != 1, else skip",
    ]
    chart = agenttx("pipeline", "show", "killed", "--as", "mermaid").out
    assert chart.startswith("flowchart TD\n    source([source])\n")
    assert "a0 -. if .-> a2" in chart
    assert agenttx("pipeline", "list", "--json").json["pipelines"][0]["name"] == "killed"
    assert agenttx("pipeline", "validate", str(files / "none.yaml")).code == 2


def test_a_run_says_how_it_comes_on_and_is_shown(agenttx: CommandLine, files: Path):
    done = agenttx("pipeline", "run", str(files / "killed.yaml"), "--rows", str(files / "rows.jsonl"))
    assert done.code == 0, done.err
    assert sorted(line for line in done.out.splitlines() if line.startswith("row ")) == [
        "row 0 committed",
        "row 1 committed",
        "row 2 committed",
    ]
    assert "3 of 3 committed" in done.out
    run_id = agenttx("pipeline", "runs", "--pipeline", "killed", "--json").json["runs"][0]["run_id"]
    shown = agenttx("pipeline", "show", run_id)
    assert shown.code == 0
    assert "COMPLETED" in shown.out
    assert agenttx("pipeline", "cancel", run_id).code == 1
    assert "has ended" in agenttx("pipeline", "follow", run_id).err
    failed = agenttx("pipeline", "run", str(files / "keeping.yaml"), "-r", str(files / "bad.jsonl"))
    assert failed.code == 1
    assert "COMPLETED_WITH_FAILURES" in failed.out
    lines = failed.out.splitlines()
    assert lines[lines.index("row 1 committed") + 1].startswith("  a failed: ")
    assert "2 of 2 committed, with failures" in failed.out
    run_id = agenttx("pipeline", "runs", "--pipeline", "keeping", "--json").json["runs"][0]["run_id"]
    shown = agenttx("pipeline", "show", run_id)
    assert shown.code == 1
    assert ": a failed: Hint: n is -1" in shown.out.splitlines()[-1]
    (files / "rows.csv").write_text("n,m\n1,2\n")
    assert (
        "rows are a JSON object a line"
        in agenttx("pipeline", "run", str(files / "keeping.yaml"), "-r", str(files / "rows.csv")).err
    )
    unread = agenttx("pipeline", "run", "keeping", "-r", str(files / "none.jsonl"))
    assert unread.err.endswith("none.jsonl can't be read: No such file or directory\n")
    both = agenttx(
        "pipeline",
        "run",
        str(files / "keeping.yaml"),
        *("-r", str(files / "rows.json"), "-r", str(files / "rows.jsonl"), "--json"),
    )
    assert both.code == 0, both.err
    last = both.json_lines[-1]
    assert (last["status"], last["rows"]) == ("COMPLETED", 5)
    records = agenttx("lineage", "records", last["run_id"], "a", "--json").json["records"]
    assert [Path(item["relative_path"]).name for item in records] == ["rows.json"] * 2 + ["rows.jsonl"] * 3
    (files / "no.jsonl").write_text('{"n": 1}\n[2]\n')
    refused = agenttx("pipeline", "run", str(files / "keeping.yaml"), "-r", str(files / "no.jsonl"))
    assert (refused.code, "line 2" in refused.err) == (2, True)


def test_records_are_traced_verified_and_exported(agenttx: CommandLine, files: Path):
    told = agenttx(
        "pipeline", "run", str(files / "seed.yaml"), "-r", str(files / "rows.jsonl"), "--json"
    ).json_lines
    run_id = told[-1]["run_id"]
    merged = agenttx("lineage", "records", run_id, "merge", "--json").json["records"][0]["target_id"]
    tree = agenttx("lineage", "trace", merged).out.splitlines()
    assert tree[0] == f"merge {merged}  ◀"
    assert [line.split("── ")[1].split()[0] for line in tree[1:4]] == ["branch_a", "extract", "source"]
    chart = agenttx("lineage", "trace", merged, "--as", "mermaid").out
    assert chart.count("-- merge -->") == 3
    below = agenttx("lineage", "descendants", merged).out
    assert below.count("process_chunk ") == 3
    branch = agenttx("lineage", "records", run_id, "branch_a", "--json").json["records"][0]["target_id"]
    siblings = agenttx("lineage", "siblings", branch, "--json").json["records"]
    assert {item["action"] for item in siblings} == {"branch_a", "branch_b", "branch_c"}
    assert "FORK" in agenttx("lineage", "events", merged).out
    verified = agenttx("lineage", "verify", run_id)
    assert (verified.code, verified.out) == (0, "36 records of 3 rows: all holds\n")

    lines = agenttx("lineage", "export", run_id).json_lines
    assert len(lines) == 36
    document = files / "prov.json"
    assert agenttx("lineage", "export", run_id, "--as", "prov-json", "-o", str(document)).code == 0
    assert len(json.loads(document.read_text())["entity"]) == 36
    assert agenttx("lineage", "export", run_id, "-o", str(document)).code == 2
    database = files / "agent_io" / "store" / "seed.db"
    assert agenttx("lineage", "export", run_id, "--sqlite", str(database)).out.startswith("36 records")
    siblings_of = sqlite3_program(database, SIBLINGS)
    assert len(siblings_of) == 9
    assert len({parent for _, parent in siblings_of}) == 3
    assert len(sqlite3_program(database, ROOTS)) == 3
    assert agenttx("lineage", "trace", "none").code == 1


def test_the_three_debugging_queries_answer_as_their_page_says(
    agenttx: CommandLine, files: Path, data_dir: Path
):
    """With the sqlite3 program, on the records of a real run: in a file of one workflow, and where the server keeps them."""
    rows = files / "one.jsonl"
    rows.write_text('{"n": 1}\n')
    told = agenttx("pipeline", "run", str(files / "seed.yaml"), "-r", str(rows), "--json").json_lines
    run_id = told[-1]["run_id"]

    def ids(action: str) -> list[str]:
        found = agenttx("lineage", "records", run_id, action, "--json").json["records"]
        return [item["target_id"] for item in found]

    database = files / "agent_io" / "store" / "seed.db"
    assert agenttx("lineage", "export", run_id, "--sqlite", str(database)).code == 0
    ((guid, target_id, parent, root, lineage),) = sqlite3_program(database, ANCESTRY)
    assert [target_id] == ids("merge")
    assert [root] == ids("source")
    assert [parent] == ids("branch_a")
    assert len(guid) == 36
    assert [node.rpartition("_")[0] for node in json.loads(lineage)] == [
        "extract",
        "branch_a",
        "branch_b",
        "branch_c",
        "merge",
    ]
    for path in (database, data_dir / "agenttx.db"):
        siblings = sqlite3_program(path, SIBLINGS)
        assert sorted(action for action, _ in siblings) == ["branch_a", "branch_b", "branch_c"]
        assert {found for _, found in siblings} == set(ids("extract"))
        assert sqlite3_program(path, ROOTS) == [ids("source")]


def sqlite3_program(path: Path, query: str) -> list[list[str]]:
    command = ["sqlite3", str(path), query]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [line.split("|") for line in answer.stdout.splitlines()]
