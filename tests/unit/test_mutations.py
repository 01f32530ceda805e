"""The list of mutations fits the code: what each replaces is there, once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_mutations", ROOT / "scripts" / "check_mutations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


MUTATIONS = _loaded().MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_what_a_mutation_replaces_is_there_once(mutation: object) -> None:
    path, old, new = mutation.path, mutation.old, mutation.new  # type: ignore[attr-defined]
    assert (ROOT / path).read_text().count(old) == 1
    assert old != new
    for check in mutation.checks:  # type: ignore[attr-defined]
        assert check == "simulation" or (ROOT / check).exists()


def test_mutations_have_names_of_their_own() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(names) == len(set(names))
    assert len(names) >= 12
