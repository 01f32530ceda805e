"""The log's lines: one form for all, nothing secret, nothing a terminal obeys."""

import io
import json
import logging
import os
import time

import pytest
import structlog

from agenttx_server.logging_setup import configure_logging, plain


@pytest.fixture(autouse=True)
def put_logging_back():
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], _ = before
    root.setLevel(before[1])
    structlog.reset_defaults()


def configured(form="json", level="info", facts=dict):
    out = io.StringIO()
    configure_logging(form, level, facts, out)
    return out


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_json_line_has_event_level_time_and_facts():
    out = configured(facts=lambda: {"transaction": "t-1"})

    structlog.get_logger().info("something", count=2)

    (line,) = lines(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "something", "level": "info", "count": 2, "transaction": "t-1"}


def test_other_libraries_come_out_in_the_same_form():
    out = configured(facts=lambda: {"transaction": "t-1"})

    logging.getLogger("agenttx_server.engine").warning("the store %s", "blinked")

    (line,) = lines(out)
    assert (line["event"], line["level"], line["transaction"]) == ("the store blinked", "warning", "t-1")


def test_lines_below_the_level_are_not_written():
    out = configured(level="warning")

    structlog.get_logger().info("quiet")
    logging.getLogger("x").info("quiet")
    structlog.get_logger().warning("loud")

    assert [line["event"] for line in lines(out)] == ["loud"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_local_variables(form):
    out = configured(form=form)

    def fail():
        password = "hunter2"  # noqa: F841
        raise ValueError("broken")

    try:
        fail()
    except ValueError as error:
        structlog.get_logger().error("internal error", exc_info=error)
        logging.getLogger("x").error("also", exc_info=error)

    assert "broken" in out.getvalue()
    assert "hunter2" not in out.getvalue().replace('password = "hunter2"', "")


def test_what_json_can_not_hold_is_written_all_the_same():
    out = configured()

    structlog.get_logger().info("odd", text="\ud800", number=2**70, thing=object())

    (line,) = lines(out)
    assert line["event"] == "odd"


def test_console_lines_are_for_people():
    out = configured(form="console")

    structlog.get_logger().info("rpc", method="ExecuteStep", ms=1.5)

    assert "rpc" in out.getvalue()
    assert "method=ExecuteStep" in out.getvalue()
    assert "\x1b" not in out.getvalue()  # no colours where no terminal is


def test_a_callers_text_can_not_forge_lines_or_move_the_cursor():
    assert plain("a\nb\x1b[2J") == "a\\nb\\x1b[2J"
    assert plain("größe 🦊") == "größe 🦊"
    assert len(plain("x" * 1000)) == 256


class StreamOfNobody(io.StringIO):
    """A log whose reader is gone, or whose disk is full."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_that_can_not_be_written_fails_nobody(form, capsys):
    configure_logging(form, "info", dict, StreamOfNobody())

    structlog.get_logger().info("rpc")
    logging.getLogger("x").warning("also")

    assert capsys.readouterr().err == ""


def test_a_reader_that_stops_reading_holds_nobody_up_and_gets_whole_lines_when_it_reads_again():
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as reader, open(writing, "w") as stream:
        configure_logging("json", "info", dict, stream)
        started = time.monotonic()
        for number in range(3000):
            structlog.get_logger().info("rpc", number=number, text="x" * 100)
        assert time.monotonic() - started < 10
        structlog.get_logger().info("large", text="y" * 100_000)

        read = reader.read(1 << 20)
        structlog.get_logger().info("back")
        read += reader.read(1 << 20)

    told = [json.loads(line) for line in read.decode().splitlines()]
    assert told[0]["number"] == 0
    assert told[-1]["event"] == "back"
    assert 100 < len(told) < 3000
