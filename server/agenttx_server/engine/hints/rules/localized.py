"""PostgreSQL in other languages: the key, the value and the quotation marks are the same in all of them."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Cause, Facts, Read, Rule, rule

__all__ = ["RULES"]

_FOREIGN: Final = (
    "fremdschlüssel",
    "clé étrangère",
    "llave foránea",
    "clave foránea",
    "chiave esterna",
    "chave estrangeira",
    "внешнего ключа",
    "внешний ключ",
    "外部キー",
    "外键",
    "外鍵",
    "참조키",
    "외래키",
    "klucza obcego",
    "klucz obcy",
    "yabancı anahtar",
    "främmande",
    "cizí klíč",
    "cizího klíče",
    "23503",
)
_UNIQUE: Final = (
    "doppelter schlüsselwert",
    "unique-constraint",
    "clé dupliquée",
    "contrainte unique",
    "llave duplicada",
    "restricción de unicidad",
    "restricción única",
    "vincolo univoco",
    "chiave duplicato",
    "duplicar valor da chave",
    "restrição de unicidade",
    "уникальности",
    "повторяющееся",
    "一意性制約",
    "重複したキー",
    "重复键",
    "唯一约束",
    "唯一限制",
    "고유 제약",
    "중복된 키",
    "unikalno",
    "podwójna wartość klucza",
    "benzersiz",
    "yinelenen",
    "unikhetsvillkor",
    "23505",
)
_NOT_NULL: Final = (
    "not-null",
    "not null",
    "non nul",
    "no nulo",
    "non-null",
    "não-nulo",
    "не null",
    "非null制約",
    "非null",
    "非空",
    "23502",
)
_CHECK: Final = (
    "check-constraint",
    "contrainte de vérification",
    "contrainte « check",
    "restricción «check»",
    "restricción check",
    "vincolo di controllo",
    "restrição de verificação",
    "ограничение-проверку",
    "检查约束",
    "検査制約",
    "23514",
)
_MARKS: Final = r"[»«„“”\"'「『‹›]\s?"
_ENDS: Final = r"[«»“”\"'」』‹›]"


def _kind(*words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(word) for group in words for word in group))


_FOREIGN_WORDS: Final = _kind(_FOREIGN)
_UNIQUE_WORDS: Final = _kind(_UNIQUE)


def _only(words: re.Pattern[str], unless: re.Pattern[str] | None = None) -> Read:
    def read(match: re.Match[str], cause: Cause) -> Facts | None:
        lowered = cause.text.lower()
        if words.search(lowered) is None or (unless is not None and unless.search(lowered)):
            return None
        return {}

    return read


def _not_null(match: re.Match[str], cause: Cause) -> Facts | None:
    if _only(_kind(_NOT_NULL), unless=_kind(_FOREIGN, _UNIQUE, _CHECK))(match, cause) is None:
        return None
    return {
        "name": match["column"] or match["column2"] or match["column3"],
        "relation": match["table"] or match["table2"],
    }


_KEY_VALUE: Final = r"\((?P<column>[\w\"]{1,63}(?:, [\w\"]{1,63}){0,7})\)\s?=\s?\((?P<value>[^()\n]{0,300})\)"
# Words that occur in localized server messages only; the detail line itself has none in common.
_TRIGGERS: Final = (
    "detail détail details detalle dettagli detalhe szczegóły ayrıntı подробности 詳細 详细信息 詳細資訊 "
    "detalj detaljer 상세정보 fehler erreur errore erro ошибка エラー 错误 hata błąd fel 오류 sqlstate 23503 "
    "23505 23502 23514"
)

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "postgres.localized_foreign_key",
        _TRIGGERS,
        # French and Catalan have apostrophes in the sentence: one is no quotation mark here.
        _KEY_VALUE + r"(?:[^\n»«„“\"「『‹]{1,80}[»«„“”\"「『‹]\s?(?P<table>\w{1,63}))?",
        C.FOREIGN_KEY_VIOLATION,
        (
            "{column} {value} breaks a foreign key to table {table}",
            "{column} {value} breaks a foreign key",
            "{column} breaks a foreign key",
        ),
        "Create the referenced row first, or pass an existing {column}.",
        "column",
        read=_only(_FOREIGN_WORDS),
    ),
    rule(
        "postgres.localized_unique",
        _TRIGGERS,
        _KEY_VALUE,
        C.UNIQUE_VIOLATION,
        ("{column} {value} already exists", "that {column} already exists"),
        "Use another {column}, or update the existing row.",
        "column",
        read=_only(_UNIQUE_WORDS, unless=_FOREIGN_WORDS),
    ),
    rule(
        "postgres.localized_not_null",
        _TRIGGERS,
        rf"(?:Spalte|colonne|columna|colonna|coluna|столбце|kolumnie|kolumnen|の列|sloupci) "
        rf"?{_MARKS}(?P<column>\w{{1,63}})\s?{_ENDS}(?:[^\n»«„“\"'「]{{1,60}}{_MARKS}(?P<table>\w"
        rf"{{1,63}})\s?{_ENDS})?"
        rf"|{_MARKS}(?P<table2>\w{{1,63}})\s?{_ENDS} ?的 ?{_MARKS}(?P<column2>\w{{1,63}})\s?{_ENDS} ?列|"
        rf"{_MARKS}(?P<column3>\w{{1,63}})\s?{_ENDS} ?(?:칼럼|열|列|sütun)",
        C.NOT_NULL_VIOLATION,
        ("{name} of {relation} must not be null", "column {name} must not be null"),
        "Pass a value for {name}.",
        "name",
        read=_not_null,
        phrases="spalte|colonne|columna|colonna|coluna|столбце|kolumnie|kolumnen|列|sloupci|칼럼|열|sütun",
    ),
    rule(
        "postgres.localized_check",
        _TRIGGERS,
        rf"{_MARKS}(?P<constraint>\w{{1,63}})\s?{_ENDS}(?![^\n]{{0,300}}{_MARKS})",
        C.CHECK_VIOLATION,
        "a value violates check constraint {constraint}",
        "Pass values that the constraint allows.",
        read=_only(_kind(_CHECK), unless=_kind(_FOREIGN, _UNIQUE)),
    ),
    rule(
        "postgres.localized_constraint",
        _TRIGGERS,
        rf"{_MARKS}(?P<constraint>\w{{1,63}}_fkey)\s?{_ENDS}",
        C.FOREIGN_KEY_VIOLATION,
        "a row refers to one that does not exist (constraint {constraint})",
        "Create the referenced row first, or pass an existing id.",
        weight=LIKELY,
    ),
    rule(
        "postgres.localized_missing_object",
        _TRIGGERS,
        r"(?P<kind>Relation|Spalte|Tabelle|relation|colonne|table|relación|columna|tabella|relazione|"
        r"colonna|relação|coluna|отношение|столбец|リレーション|列|关系|字段) ?"
        + rf"{_MARKS}(?P<object>[\w.]{{1,130}})\s?[«»“”\"'」』‹›][^\n]{{0,40}}?(?:existiert nicht|n'existe "
        rf"pas|no existe|non esiste|não existe|не существует|は存在しません|不存在)",
        C.MISSING_SCHEMA_OBJECT,
        "{object} does not exist in the database",
        "Check the name against the schema.",
        phrases="existiert nicht|n'existe pas|no existe|non esiste|não existe|не существует|は存在しません|不存在",
    ),
)
