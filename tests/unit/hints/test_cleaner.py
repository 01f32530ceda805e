"""What clean() does whatever the system: causes, groups, bounds, determinism, the fallback, explanations."""

from __future__ import annotations

import pytest

from agenttx_server.engine.hints import Cleaner, clean, explain
from agenttx_server.engine.records import HintCategory

_JAVA_FRAME = "\tat test.freight.web.Filter{0}.invoke(Filter{0}.java:{0})\n"


def _long_java_trace(frames: int) -> str:
    return (
        "jakarta.servlet.ServletException: Handler dispatch failed: test.freight.RateUnavailable: no answer\n"
        + "".join(_JAVA_FRAME.format(n) for n in range(frames))
        + "Caused by: java.net.SocketTimeoutException: Read timed out\n"
        + "".join(_JAVA_FRAME.format(n) for n in range(frames))
        + "\t... 412 common frames omitted\n"
    )


@pytest.mark.parametrize("frames", [3, 900, 20_000])
def test_the_last_cause_of_a_long_java_trace_decides(frames: int) -> None:
    hint = clean(_long_java_trace(frames))

    assert hint.category is HintCategory.TIMEOUT
    assert "Read timed out" in hint.text
    assert "Filter" not in hint.text


def test_an_error_while_handling_another_does_not_hide_the_stronger_fact() -> None:
    raw = (
        "Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n    cache[key]\n'
        "KeyError: 'warm'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "a.py", line 2, in f\n    cur.execute(q)\n'
        'psycopg.errors.UniqueViolation: duplicate key value violates unique constraint "beds_pkey"\n'
        "DETAIL:  Key (bed_no)=(7) already exists."
    )

    assert clean(raw).keys == ("bed_no",)


def test_all_members_of_an_exception_group_are_named() -> None:
    raw = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "a.py", line 1, in main\n'
        "  | ExceptionGroup: two failed (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | KeyError: 'rate'\n"
        "    +---------------- 2 ----------------\n"
        "    | ValueError: stock of TQ-4 is 'n/a'\n"
        "    +------------------------------------\n"
    )

    hint = clean(raw)

    assert hint.keys == ("rate",)
    assert "TQ-4" in hint.text


def test_composite_keys_are_all_kept() -> None:
    hint = clean(
        'ERROR: insert or update on table "lines" violates foreign key constraint "fk"\n'
        'DETAIL: Key (tenant_id, order_no)=(4, 77) is not present in table "orders".'
    )

    assert hint.keys == ("tenant_id", "order_no")


@pytest.mark.parametrize("raw", ["", " \n\t ", "\x00\x01", "\ud800", "\u202e\u200b"])
def test_text_that_says_nothing_still_gives_a_hint(raw: str) -> None:
    hint = clean(raw)

    assert hint.text == "Hint: The tool failed and said nothing. Check the inputs of this step."
    assert hint.category is HintCategory.UNKNOWN
    assert hint.rule is None


def test_a_hint_cleaned_again_keeps_its_words() -> None:
    once = clean("KeyError: 'dock_no'")
    twice = clean(once.text)

    assert twice.text.startswith("Hint: key dock_no is missing.")


def test_the_same_text_gives_the_same_hint() -> None:
    raw = _long_java_trace(50)

    assert clean(raw) == clean(raw) == Cleaner().clean(raw)


def test_explanation_names_the_rule_and_the_matched_passage() -> None:
    explanation = explain("sqlite3.IntegrityError: UNIQUE constraint failed: access.badge")

    assert explanation.rule == "sqlite.unique"
    assert explanation.hint.rule == "sqlite.unique"
    assert explanation.matched == "UNIQUE constraint failed: access.badge"
    assert "sqlite.unique" in explanation.why


def test_explanation_of_the_fallback_says_so() -> None:
    explanation = explain("the gauge did not answer")

    assert explanation.rule is None
    assert "no rule matched" in explanation.why


def test_explanation_is_masked() -> None:
    explanation = explain("connect to postgres://app:Sup3rS3cret@db.test:5432/x failed: Connection refused")

    assert "Sup3rS3cret" not in explanation.matched + explanation.why + explanation.hint.text


def test_a_wait_told_in_a_header_is_passed_on() -> None:
    hint = clean('HTTP/1.1 429 Too Many Requests\nRetry-After: 37\n\n{"error":"slow down"}')

    assert hint.category is HintCategory.RATE_LIMITED
    assert "37 s" in hint.text


def test_a_broken_off_body_is_read_as_far_as_it_goes() -> None:
    hint = clean('{"errors":[{"field":"nights","message":"must be at least 1"},{"field":"gue')

    assert hint.category is HintCategory.INVALID_VALUE
    assert hint.keys == ("nights",)


def test_a_status_of_200_does_not_hide_graphql_errors() -> None:
    hint = clean(
        '{"data":null,"errors":[{"message":"Parcel P-7 not found","extensions":{"code":"NOT_FOUND"}}]}'
    )

    assert hint.category is HintCategory.MISSING_RECORD
    assert "P-7" in hint.text
