"""Oracle: every message carries its ORA number."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule
from ..vocabulary import ADVICE

__all__ = ["RULES"]

_ORACLE: Final[dict[C, tuple[str, ...]]] = {
    C.CONFLICT: ("00060", "08177", "00054", "08176", "30006"),
    C.AUTHENTICATION: ("01017", "28000", "28001", "01005", "01045"),
    C.PERMISSION_DENIED: ("01031", "01720", "01749", "28009", "01536"),
    C.MISSING_RECORD: ("01403", "00100"),
    C.CONNECTION: (
        "12541",
        "12514",
        "12154",
        "03113",
        "03114",
        "03135",
        "12537",
        "12545",
        "12505",
        "01034",
        "01033",
        "12560",
        "12505",
    ),
    C.TIMEOUT: ("12170", "12535", "02049", "01013"),
    C.RESOURCE_EXHAUSTED: (
        "01653",
        "01654",
        "01652",
        "30036",
        "04031",
        "04030",
        "00018",
        "00020",
        "01000",
        "02391",
    ),
    C.MISSING_SCHEMA_OBJECT: ("04043", "02289", "00980", "01917", "01918", "06564", "04063"),
    C.NOT_NULL_VIOLATION: ("01400", "01407"),
    C.UNKNOWN: ("00600", "07445"),
}

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "oracle.foreign_key",
        "02291",
        r"ORA-02291: (?:integrity constraint|foreign key constraint "
        r"violated\.)[^\n(]{0,40}\(?(?P<constraint>[\w.$#]{1,130})\)? ?violated[^\n]{0,20}parent key "
        r"not found",
        C.FOREIGN_KEY_VIOLATION,
        "ORA-02291: no parent row for constraint {constraint}",
        "Create the parent row first, or pass the id of an existing one.",
    ),
    rule(
        "oracle.child_record",
        "02292",
        r"ORA-02292: integrity constraint \((?P<constraint>[\w.$#]{1,130})\) violated[^\n]{0,20}child "
        r"record found",
        C.FOREIGN_KEY_VIOLATION,
        "ORA-02292: child rows still refer to the row (constraint {constraint})",
        "Delete or re-point the child rows first.",
    ),
    rule(
        "oracle.unique",
        "00001",
        r"ORA-00001: unique constraint \((?P<constraint>[\w.$#]{1,130})\) violated(?: on table "
        r"(?P<table>[\w.$#]{1,130}) columns \((?P<column>[^()\n]{1,200})\))?(?:\s{1,8}ORA-03301: "
        r"\(ORA-00001 details\) row with column values \((?P<value>[^()\n]{1,200})\))?",
        C.UNIQUE_VIOLATION,
        (
            "ORA-00001: {column} of {table} already exists (constraint {constraint}): {value}",
            "ORA-00001: {column} of {table} already exists (constraint {constraint})",
            "ORA-00001: the value already exists (unique constraint {constraint})",
        ),
        "Use another value, or update the existing row.",
        "column",
    ),
    rule(
        "oracle.not_null",
        "01400 01407",
        r"(?P<code>ORA-0140[07]): cannot (?:insert|update) (?:NULL into )?\((?P<place>\"[^()\n]{1,200}\")\)",
        C.NOT_NULL_VIOLATION,
        "{code}: {column} of {table} must not be null",
        "Pass a value for {column}.",
        "column",
        read=lambda match, cause: {
            "column": match["place"].split(".")[-1].strip('" '),
            "table": match["place"].split(".")[-2].strip('" ') if "." in match["place"] else "the table",
            "place": None,
        },
    ),
    rule(
        "oracle.check",
        "02290",
        r"ORA-02290: check constraint \((?P<constraint>[\w.$#]{1,130})\) violated",
        C.CHECK_VIOLATION,
        "ORA-02290: check constraint {constraint} violated",
        "Pass values that the constraint allows.",
    ),
    rule(
        "oracle.missing_object",
        "00942 00904 04043 00980 02289 06550",
        r"ORA-00942: table or view (?:\"(?P<table>[^\n]{1,130})\" )?does not exist|"
        r"(?P<code>ORA-00904): (?P<column>[\w.\"$#]{1,200}): invalid identifier|(?P<code2>ORA-(?:04043|"
        r"02289|00980)): (?P<detail>[^\n]{1,120})",
        C.MISSING_SCHEMA_OBJECT,
        (
            "ORA-00942: table or view {table} does not exist",
            "{code}: invalid identifier {column}",
            "{code2}: {detail}",
            "ORA-00942: table or view does not exist",
        ),
        "Check the name, the schema and the grants.",
        phrases="ora-00942|ora-00904|ora-04043|ora-02289|ora-00980",
    ),
    rule(
        "oracle.too_long",
        "12899",
        r"ORA-12899: value too large for column (?P<place>\"[^()\n]{1,200}\") \(actual: "
        r"(?P<actual>\d{1,9}), maximum: (?P<maximum>\d{1,9})\)",
        C.INVALID_VALUE,
        "ORA-12899: value too large for column {column} (actual: {actual}, maximum: {maximum})",
        "Shorten {column}.",
        "column",
        read=lambda match, cause: {"column": match["place"].split(".")[-1].strip('" ')},
    ),
    rule(
        "oracle.codes",
        "ora",
        r"ORA-(?P<number>\d{5}): (?P<detail>[^\n]{1,200})",
        C.INVALID_VALUE,
        "ORA-{number}: {detail}",
        "{advice}",
        weight=LIKELY,
        read=lambda match, cause: _oracle(match["number"]),
    ),
)


def _oracle(number: str) -> dict[str, str | None]:
    category = next((category for category, numbers in _ORACLE.items() if number in numbers), None)
    if category is None and number.startswith("20"):  # raise_application_error: the application's own
        category = C.UNKNOWN
    return {"category": category.value if category else None, "advice": ADVICE[category or C.INVALID_VALUE]}
