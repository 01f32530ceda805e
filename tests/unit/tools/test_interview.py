"""Questions of a node: answered ones are answered in order, the next one waits, another one is refused."""

import hashlib

from agenttx_server.engine.json_values import MISSING, canonical
from agenttx_server.tools.interview import Interview, StoredAnswer
from agenttx_server.worker_messages import Failure, Output, Waits


def stored(question, answer) -> StoredAnswer:
    return StoredAnswer(hashlib.sha256(canonical(question).encode()).hexdigest(), answer)


def test_answers_come_in_order_and_the_next_question_waits():
    interview = Interview([stored("a", 1), stored({"b": 2, "a": 1}, None)])

    assert interview.ask('"a"') == Output("1")
    assert interview.ask('{"a": 1, "b": 2}') == Output("null"), "the same value, however it is written"
    assert not interview.is_over
    assert interview.ask('"c"') == Waits()
    assert interview.ask('"d"') == Waits(), "one waits already"
    assert interview.pending == "c"
    assert interview.is_over


def test_another_question_at_an_answered_place_ends_the_node():
    interview = Interview([stored("a", 1)])

    assert isinstance(interview.ask('"other"'), Failure)
    assert interview.deviation == 0
    assert interview.pending is MISSING
    assert interview.is_over


def test_a_question_that_is_no_json_is_refused_and_is_none():
    interview = Interview([])

    assert isinstance(interview.ask("{"), Failure)
    assert not interview.is_over
