"""The default rules, most specific systems first. A new family is a module with a ``RULES`` tuple, named here."""

from __future__ import annotations

from typing import Final

from ..rule import Rule
from . import (
    agenttx,
    cloud,
    connections,
    containers,
    documents,
    exceptions,
    filesystem,
    git,
    grpc,
    http,
    java,
    json_text,
    languages,
    localized,
    models,
    mysql,
    node,
    packages,
    postgresql,
    prose,
    python,
    shell,
    sqlite,
    terraform,
    timeouts,
    validation,
    warehouses,
)

__all__ = ["DEFAULT_RULES"]

DEFAULT_RULES: Final[tuple[Rule, ...]] = (
    *agenttx.RULES,
    *postgresql.RULES,
    *localized.RULES,
    *mysql.RULES,
    *sqlite.RULES,
    *documents.RULES,
    *warehouses.RULES,
    *validation.RULES,
    *json_text.RULES,
    *models.RULES,
    *cloud.RULES,
    *git.RULES,
    *containers.RULES,
    *terraform.RULES,
    *packages.RULES,
    *python.RULES,
    *java.RULES,
    *node.RULES,
    *languages.RULES,
    *grpc.RULES,
    *http.RULES,
    *filesystem.RULES,
    *shell.RULES,
    *timeouts.RULES,
    *connections.RULES,
    *prose.RULES,
    *exceptions.RULES,
)
