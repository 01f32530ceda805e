"""What an operator's file says when it can't be used: where, and what is allowed there, and no secret."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agenttx_server.engine.operator_files import (
    FileRefused,
    Table,
    check_private,
    read_document,
    read_entries,
    read_named,
)

KNOWN = ("name", "kinds", "most")


def _read(table: Table) -> tuple[str, tuple[str, ...], int]:
    return table.text("name"), table.texts("kinds", ("all",)), table.whole_number("most", 0, 9, 3)


def _entries(path: Path) -> object:
    return read_entries(path, "thing", KNOWN, _read, most=2)


def test_tables_are_read_with_their_defaults_and_in_either_language(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('[[thing]]\nname = "a"\n[[thing]]\nname = "b"\nkinds = ["x"]\nmost = 9')
    (tmp_path / "f.json").write_text('{"thing": [{"name": "a"}, {"name": "b", "kinds": ["x"], "most": 9}]}')
    expected = [("a", ("all",), 3), ("b", ("x",), 9)]
    assert _entries(tmp_path / "f.toml") == _entries(tmp_path / "f.json") == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "f.toml: give 1 to 2 tables [[thing]], and nothing else"),
        ("thing = 1", "give 1 to 2 tables [[thing]]"),
        ("[[thing]]\n" * 3, "give 1 to 2 tables [[thing]]"),
        ("other = 1\n[[thing]]\nname = 'a'", "'other' means nothing here; give [[thing]], and nothing else"),
        ("thing = [1]", "thing 1: is no table; it may hold name, kinds, most"),
        ("[[thing]]\nnam = 'a'", "thing 1: unknown key 'nam'; known are name, kinds, most"),
        ("[[thing]]", "thing 1: `name` is missing"),
        ("[[thing]]\nname = ''", "thing 1: `name` is empty"),
        ("[[thing]]\nname = 1", "thing 1: `name` is no text"),
        (
            "[[thing]]\nname = 'a'\n[[thing]]\nname = 'b'\nkinds = 'x'",
            "thing 2 ('b'): `kinds` is no list of texts",
        ),
        ("[[thing]]\nname = 'a'\nkinds = [1]", "`kinds` is no list of texts"),
        ("[[thing]]\nname = 'a'\nkinds = []", "`kinds` has 0 texts; 1 or more are needed"),
        ("[[thing]]\nname = 'a'\nmost = 10", "`most` is no whole number from 0 to 9"),
        ("[[thing]]\nname = 'a'\nmost = true", "`most` is no whole number from 0 to 9"),
        ("[[thing]]\nname = 'a'\nmost = 1.0", "`most` is no whole number from 0 to 9"),
        ("a = [", "f.toml is not valid TOML: Invalid value (at end of document)"),
        ("a = 1\nb = ?", "(at line 2, column 5)"),
        (b"a = '\xff'", "f.toml is not UTF-8, at byte 5"),
        (b"a = " + b"[" * 10_000, "f.toml is nested too deeply"),
        (b"#" * ((1 << 20) + 1), "f.toml is larger than 1 MiB"),
    ],
)
def test_a_fault_is_told_in_one_line_with_its_place(tmp_path: Path, text: str | bytes, told: str) -> None:
    path = tmp_path / "f.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileRefused) as refused:
        _entries(path)
    assert told in str(refused.value)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["none.toml", "folder"])
def test_a_file_that_can_t_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileRefused, match=rf"{name} can't be read: (No such file|Is a directory)"):
        read_document(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("f.toml", "[A]\nvalue = 'hidden\n", "is not valid TOML, at end of document"),
        ("f.toml", "[A]\nvalue = hidden", "is not valid TOML, at line 2, column 9"),
        ("f.toml", "hidden", "is not valid TOML, at end of document"),
        ("f.json", '{"A": hidden}', "is not valid JSON, at line 1 column 7"),
        ("f.toml", "A = 'hidden'", "'A': is no table"),
    ],
)
def test_of_a_file_of_secrets_only_places_are_told(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FileRefused) as refused:
        read_named(tmp_path / name, ("value",), lambda name, table: table.text("value"), quotes=False)
    assert told in str(refused.value)
    assert "hidden" not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("mode", "owner", "is_refused"),
    [
        (0o600, os.geteuid, False),
        (0o400, os.geteuid, False),
        (0o640, os.geteuid, True),
        (0o604, os.geteuid, True),
        (0o440, lambda: os.geteuid() + 1, False),  # as a secret is mounted into a container
        (0o460, lambda: os.geteuid() + 1, True),
        (0o444, lambda: os.geteuid() + 1, True),
    ],
)
def test_secrets_are_read_by_their_owner_or_from_root_by_the_group(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    owner: Callable[[], int],
    is_refused: bool,
) -> None:
    path = tmp_path / "secrets.toml"
    path.touch()
    path.chmod(mode)
    reader = (
        path.stat().st_uid * 2 - owner()
    )  # files can't be given away here: the reader is another one instead
    monkeypatch.setattr(os, "geteuid", lambda: reader)
    if not is_refused:
        check_private(path)
        return
    with pytest.raises(FileRefused, match=rf"others may read it, mode {mode:04o}: chmod 600"):
        check_private(path)
