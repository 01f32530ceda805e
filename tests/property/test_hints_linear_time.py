"""Work grows with the text, not with its square, on texts made to be slow.

Times of one machine are compared with each other only: a text twice as long may take about twice as
long. Quadratic work would take four times, exponential work would not come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from agenttx_server.engine.hints import clean, mask_secrets
from agenttx_server.engine.hints.rules import DEFAULT_RULES

_WORDS = " ".join(sorted({trigger for rule in DEFAULT_RULES for trigger in rule.triggers}))
_UNITS = {
    "letters": "a",
    "open braces": "{",
    "open brackets": "[",
    "quotes": '"',
    "escaped quotes": "\\'",
    "escapes": "\x1b[",
    "unclosed keys": "Key (aaaa",
    "lines": "x\n",
    "causes": "Caused by: java.lang.Error: x\n",
    "arrows": " ---> x",
    "frames": '  File "a", line 1\n',
    "trigger words": _WORDS + " ",
    "trigger lines": _WORDS.replace(" ", "\n") + "\n",
    "secrets": "password=",
    "quoted secrets": 'token="a\\"',
    "urls": "://a:b@",
    "tokens": "eyJ",
    "keys": "-----BEGIN RSA PRIVATE KEY-----",
    "dashes": "a-",
    "dots": "a.",
    "paths": "/a",
    "sentences": "you must now x. ",
    "errors": "Error: aaaa bbbb cccc: ",
    "long words": "a" * 199 + " ",
    "flags": '"--a-a-a-',
    "broken bodies": '{"errors":[{"field":"a","message":"b"},',
    "indented lines": "\n  a",
    "nested objects": '{"a":',
    "elements": '[{"a":[1,',
    "rare letters": "jxwvkgp",
    "nearly names": "pas toke coki sigm digst autx sessio secre ",
    "tracebacks": 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\nKeyError: 1\n\n',
    "wide": "列😀é ",
    "lone surrogates": "\ud83d",
    "fields": "3 validation errors for A\na\n  b [type=\n",
}


def _thread_seconds(function: Callable[[str], object], text: str) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.thread_time()
        function(text)
        best = min(best, time.thread_time() - start)
    return best


@pytest.mark.parametrize("function", [clean, mask_secrets], ids=["clean", "mask"])
@pytest.mark.parametrize("unit", _UNITS.values(), ids=_UNITS.keys())
def test_twice_the_text_takes_about_twice_the_time(function: Callable[[str], object], unit: str) -> None:
    size = 32_768
    text = unit * (2 * size // len(unit) + 1)

    half = _thread_seconds(function, text[:size])
    whole = _thread_seconds(function, text[: 2 * size])

    assert whole < 3.2 * half + 0.002


def test_a_megabyte_costs_little_more_than_the_bound() -> None:
    unit = "Error: connection to server failed (reason unknown): try again later\n"
    bounded = _thread_seconds(clean, unit * 1000)
    long = _thread_seconds(clean, unit * 20_000)

    assert long < 6 * bounded + 0.01
