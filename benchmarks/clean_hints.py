"""How long Clean Hints take: real errors, a 2 KB trace, and texts made to be slow.

Prints one JSON object: microseconds of CPU time (median, p99) over the sample errors and over a 2 KB
trace, and milliseconds for each 64 KiB hostile text. With --check the exit status is 1 if a limit is
passed: a 2 KB trace 100 µs in the median and 1 ms at p99, a hostile text 5 ms. With --search N it also
tries N random texts, put together from what the rules and the masks look for, and shows the slowest.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.error_samples import error_samples

from agenttx_server.engine.hints import clean, mask_secrets
from agenttx_server.engine.hints.rules import DEFAULT_RULES

HOSTILE_SIZE = 64 * 1024
_WORDS = " ".join(sorted({trigger for rule in DEFAULT_RULES for trigger in rule.triggers}))
FRAGMENTS = (
    *_WORDS.split(),
    *"password pwd pin ssn otp jwt cvv token secret session_id signature api_key access-key auth cookie".split(),
    *"credential bearer basic digest negotiate key sk- pk_live_ gho_ github_pat_ glpat- xoxb- AKIA eyJ npm_".split(),
    *"hf_ dop_v1_ SG. whsec_ hvs. shpat_ https://a:b@c -----BEGIN --a-token Traceback File DETAIL: --- | │".split(),
    *(
        "=",
        ": ",
        '": "',
        "', '",
        '"',
        "'",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        " ---> ",
        "[cause]: ",
        "Caused by: ",
    ),
    *("\n", "\n\t", "\n  at ", "\n    ", "\x1b[31m", "[31m", "é", "İ", "列", "a", "a" * 40, "7", "\\", "***"),
)
HOSTILE_UNITS = {
    "letters": "a",
    "open_braces": "{",
    "open_brackets": "[",
    "quotes": '"',
    "escaped_quotes": "\\'",
    "terminal_codes": "\x1b[31m",
    "unclosed_keys": "Key (aaaa",
    "short_lines": "x\n",
    "causes": "Caused by: java.lang.Error: x\n",
    "arrows": " ---> x",
    "frames": '  File "a", line 1\n',
    "java_frames": "\tat a.b(C.java:1)\n",
    "trigger_words": _WORDS + " ",
    "trigger_lines": _WORDS.replace(" ", "\n") + "\n",
    "secrets": "password=",
    "harmless_names": "key=",
    "unclosed_secrets": 'token="a ',
    "short_secrets": "pin=a ",
    "secret_words": "otppass",
    "spaced_words": "ssn otpssn ",
    "secret_flags": '"--a-a-a-',
    "url_passwords": "token ://a:b@",
    "token_starts": "Ashpat_",
    "cookies": "Cookie: a\n",
    "base64": "eyJaaaaaaaaa.",
    "secret_lines": "password=a\n\t",
    "growing_letters": "İkey: ",
    "instructions": "you must now x. ",
    "errors": "Error: aaaa bbbb cccc: ",
    "fields": "3 validation errors for A\na\n  b [type=\n",
    "long_words": "a" * 199 + " ",
    "mixture": "".join(random.Random(1).choices(FRAGMENTS, k=9000)),  # the kind that a search finds slowest
    "cut_json": '{"field":"a","message":"b"},',
    "nested_objects": '{"a":',
    "array_elements": '"a",',
    "numbers": "1,",
    "objects": "{a:1},",
    "whole_array": "1, ",
    "urls": "https://a.test/b?c=d ",
    "dsns": "postgresql://a:",
    "wide_letters": "😀",
    "wide_lines": "列: é\n",
    "lone_surrogates": "\ud83d",
    "rare_letters": "jxwvkgp",  # what the names of secrets are looked for by
    "every_fifth_letter": "k....g....p....",
    "nearly_names": "pas toke coki sigm digst autx sessio secre ",
    "nearly_triggers": " ".join(word[:-1] for word in _WORDS.split()) + " ",
    "cut_terminal_codes": "\x1b[",
    "beheaded_terminal_codes": "[3;1",
    "tracebacks": 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\nKeyError: 1\n\n',
    "java_chain": "Caused by: a.b.CException: x\n\tat a.b.C.d(C.java:1)\n\tat a.b.C.e(C.java:2)\n",
    "node_properties": "  code: 'E',\n",
    "repeated_details": "DETAIL:  Key (a)=(",
    "repeated_keys": "key: ",
    "boxes": "│ \n",
    "group_bars": "  | x\n",
    "carets": "    ^^^\n",
    "backslashes": "\\",
    "carriage_returns": "a\r",
    "private_keys": "-----BEGIN PRIVATE KEY-----",
    "flags": " --a-b-token ",
}
_HEADS = {  # what stands before the repeated text
    "cut_json": '{"errors":[',
    "array_elements": "[",
    "numbers": '{"a":[',
    "objects": "[",
    "whole_array": '{"errors":[',
    "group_bars": "  + Exception Group Traceback (most recent call last):\n",
}

_TAILS = {"whole_array": "1]}"}  # and after it


def trace_of_two_kilobytes() -> str:
    """A Python traceback of about 2 KB around a database error."""
    frame = '  File "/opt/venv/lib/python3.11/site-packages/sqlalchemy/engine/base.py", line {0}, in method_{0}\n    return self.do_{0}(statement, parameters)\n'
    head = "Traceback (most recent call last):\n" + "".join(frame.format(1900 + n) for n in range(12))
    return head + (
        'psycopg.errors.ForeignKeyViolation: insert or update on table "orders" violates foreign key constraint "orders_customer_id_fkey"\n'
        'DETAIL:  Key (customer_id)=(c-9) is not present in table "customers".\n'
    )


def cpu_seconds(function: Callable[[str], object], text: str) -> float:
    """CPU time of one call on this thread; other load on the machine doesn't count."""
    start = time.thread_time()
    function(text)
    return time.thread_time() - start


def microseconds(texts: list[str], repeats: int) -> dict[str, float]:
    times = sorted(cpu_seconds(clean, text) for _ in range(repeats) for text in texts)
    return {
        "calls": len(times),
        "median_us": round(statistics.median(times) * 1e6, 1),
        "p99_us": round(times[int(len(times) * 0.99)] * 1e6, 1),
    }


def repeated(unit: str) -> str:
    return (unit * (HOSTILE_SIZE // len(unit) + 1))[:HOSTILE_SIZE]


def slowest_found(function: Callable[[str], object], tries: int) -> dict[str, object]:
    """The slowest of ``tries`` random texts: how they begin, and milliseconds. The same ones on every run."""
    chance = random.Random(0)
    found: list[tuple[float, str]] = []
    for _ in range(tries):
        unit = "".join(chance.choices(FRAGMENTS, k=chance.choice((1, 2, 3, 6, 20, 100, 9000))))
        text = repeated(unit)
        found.append((min(cpu_seconds(function, text) for _ in range(3)), unit[:80]))
    worst, unit = max(found)
    return {"ms": round(worst * 1e3, 2), "begins": unit}


def hostile_milliseconds(function: Callable[[str], object], repeats: int) -> dict[str, float]:
    found = {}
    for name, unit in HOSTILE_UNITS.items():
        tail = _TAILS.get(name, "")
        text = (_HEADS.get(name, "") + repeated(unit))[: HOSTILE_SIZE - len(tail)] + tail
        found[name] = round(min(cpu_seconds(function, text) for _ in range(repeats)) * 1e3, 2)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20, help="rounds over the samples (default 20)")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a limit is passed")
    parser.add_argument("--search", type=int, default=0, metavar="N", help="also try N random hostile texts")
    options = parser.parse_args()

    samples = [sample.raw for sample in error_samples()]
    trace = trace_of_two_kilobytes()
    for text in samples:
        clean(text)  # the first call compiles nothing but fills caches
    result = {
        "samples": microseconds(samples, options.repeats),
        "trace_2kb": {"characters": len(trace)} | microseconds([trace], options.repeats * 50),
        "hostile_clean_ms": hostile_milliseconds(clean, 15),
        "hostile_mask_ms": hostile_milliseconds(mask_secrets, 15),
    }
    if options.search:
        result["found_clean"] = slowest_found(clean, options.search)
        result["found_mask"] = slowest_found(mask_secrets, options.search)
    print(json.dumps(result, indent=1))
    passed = (
        result["trace_2kb"]["median_us"] <= 100
        and result["trace_2kb"]["p99_us"] <= 1000
        and max(result["hostile_clean_ms"].values()) < 5
        and max(result["hostile_mask_ms"].values()) < 5
        and all(result[name]["ms"] < 5 for name in ("found_clean", "found_mask") if name in result)
    )
    return 0 if passed or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
