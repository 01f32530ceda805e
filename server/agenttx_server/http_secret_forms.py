"""The ways in which a service may write a secret that it sends back.

As it is; with characters that are neither letters nor digits percent-encoded, escaped as in JSON, or as in
HTML, each for itself and in either case; in UTF-16; in hexadecimal; in base64 of either alphabet, also within a longer text
such as ``user:secret``, where its place among the groups of three bytes decides how it looks.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

__all__ = ["WrittenForm", "forms_of"]

_RUN = re.compile(r"[A-Za-z0-9]+")
_BASE64_CHARACTER = "[A-Za-z0-9+/_-]?"
_HTML_NAMES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}


@dataclass(frozen=True, slots=True)
class WrittenForm:
    """``anchor`` stands in every text that ``pattern`` matches, and is found faster; ``readable`` ones hold the
    secret and nothing else, so that a template can stand in their place.
    """

    anchor: str
    pattern: re.Pattern[str]
    readable: bool = False

    def found_in(self, text: str) -> bool:
        """Whether a text holds the secret so written."""
        return self.anchor in text and self.pattern.search(text) is not None

    def replaced(self, text: str, replacement: str) -> str:
        """Return a text with something else in its place."""
        return self.pattern.sub(lambda _: replacement, text) if self.anchor in text else text


def forms_of(value: str) -> list[WrittenForm]:
    """Return the forms of a value of printable ASCII."""
    anchor = _longest_run(value)
    return [
        WrittenForm(anchor, re.compile("".join(map(_spelled, value))), readable=True),
        # Beside the first one, which takes two backslashes for one that is escaped.
        WrittenForm(value, re.compile(re.escape(value)), readable=True),
        WrittenForm("\0".join(anchor), re.compile("\0".join(map(re.escape, value)))),
        *(_in_base64(value, bytes_before) for bytes_before in range(3)),
        *(WrittenForm(digits, re.compile(digits)) for digits in _in_hexadecimal(value)),
    ]


def _in_hexadecimal(value: str) -> set[str]:
    digits = value.encode().hex()
    return {digits, digits.upper()}


def _spelled(character: str) -> str:
    if character.isalnum():
        return character
    code = ord(character)
    spellings = [
        f"(?i:%{code:02x})",
        rf"(?i:\\u{code:04x})",
        f"&#0{{0,4}}{code};",
        f"(?i:&#x0{{0,4}}{code:x};)",
        *([f"(?i:&{_HTML_NAMES[character]};)"] if character in _HTML_NAMES else []),
        *([r"\\" + re.escape(character)] if character in "\"'\\/" else []),
        *([r"\+"] if character == " " else []),
        re.escape(character),
    ]
    return f"(?>{'|'.join(spellings)})"  # atomic: a text is read in linear time, whatever it holds


def _in_base64(value: str, bytes_before: int) -> WrittenForm:
    """Return the form of a value before which so many bytes, of three, stand in its group."""
    raw = bytes(bytes_before) + value.encode("ascii")
    encoded = base64.b64encode(raw).decode("ascii")
    begin, end = -(-bytes_before * 8 // 6), len(raw) * 8 // 6
    own = encoded[begin:end]
    # The characters at either end hold some bits of the value and some of what stands beside it.
    before = _BASE64_CHARACTER if bytes_before else ""
    after = _BASE64_CHARACTER if len(raw) % 3 else ""
    pattern = before + "".join(map(_in_either_alphabet, own)) + after + "(?:=|(?i:%3d)){0,2}"
    return WrittenForm(_longest_run(own), re.compile(pattern))


def _in_either_alphabet(character: str) -> str:
    other = {"+": "-", "/": "_"}.get(character)
    return character if other is None else f"(?>{_spelled(character)}|{other})"


def _longest_run(text: str) -> str:
    return max(_RUN.findall(text), key=len, default="")
