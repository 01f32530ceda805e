"""HTTP statuses as client libraries print them: requests, httpx, aiohttp, urllib, axios, curl, Go, Java."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE, category_of_status

__all__ = ["RULES"]


def _by_status(match: re.Match[str], cause: Cause) -> Facts | None:
    status = int(match["status"])
    category = category_of_status(status)
    return None if category is None else {"category": category.value, "advice": ADVICE[category]}


_URL: Final = r"(?P<url>https?://[^\s'\"<>)]{1,300})"

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "http.requests",
        "client server",
        r"(?P<status>[45]\d\d) (?:Client|Server) Error: (?P<detail>[^\n]{0,100}?) for url: " + _URL,
        C.HTTP_CLIENT_ERROR,
        ("HTTP {status} {detail} for {url}", "HTTP {status} for {url}"),
        "{advice}",
        weight=LIKELY,
        read=_by_status,
    ),
    rule(
        "http.httpx",
        "client server",
        r"(?:Client|Server) error '(?P<status>[45]\d\d) ?(?P<detail>[^'\n]{0,80})' for url '" + _URL,
        C.HTTP_CLIENT_ERROR,
        ("HTTP {status} {detail} for {url}", "HTTP {status} for {url}"),
        "{advice}",
        weight=LIKELY,
        read=_by_status,
    ),
    rule(
        "http.aiohttp",
        "message",
        r"(?P<status>[45]\d\d), message='(?P<detail>[^'\n]{0,120})', url=(?:URL\()?'?" + _URL,
        C.HTTP_CLIENT_ERROR,
        ("HTTP {status} {detail} for {url}", "HTTP {status} for {url}"),
        "{advice}",
        weight=LIKELY,
        read=_by_status,
    ),
    rule(
        "http.urllib",
        "http",
        r"HTTP Error (?P<status>[45]\d\d): (?P<detail>[^\n]{0,120})",
        C.HTTP_CLIENT_ERROR,
        ("HTTP {status} {detail}", "HTTP {status}"),
        "{advice}",
        read=_by_status,
        weight=LIKELY,
    ),
    rule(
        "http.axios",
        "status",
        r"Request failed with status(?: code)?:? (?P<status>[45]\d\d)(?P<detail>[^\n]{0,100})",
        C.HTTP_CLIENT_ERROR,
        ("request failed with status code {status} {detail}", "request failed with status code {status}"),
        "{advice}",
        read=_by_status,
        weight=LIKELY,
    ),
    rule(
        "http.curl",
        "curl",
        r"curl: \((?P<exit>22|56)\) The requested URL returned error: "
        r"(?P<status>[45]\d\d)(?P<detail>[^\n]{0,60})",
        C.HTTP_CLIENT_ERROR,
        ("HTTP {status} {detail}", "HTTP {status}"),
        "{advice}",
        read=_by_status,
    ),
    rule(
        "http.status_line",
        "http",
        r"\bHTTP/[\d.]{1,3} (?P<status>[45]\d\d)(?: (?P<detail>[A-Z][A-Za-z\- ']{1,60}))?",
        C.HTTP_CLIENT_ERROR,
        ("HTTP {status} {detail}", "HTTP {status}"),
        "{advice}",
        read=_by_status,
        weight=LIKELY,
    ),
    rule(
        "http.spring_client",
        "httpclienterrorexception httpservererrorexception webclientresponseexception",
        r"(?:HttpClientErrorException|HttpServerErrorException|"
        r"WebClientResponseException)(?:\$(?P<name>\w{1,60}))?: "
        r"(?P<status>[45]\d\d)(?P<detail>[^\n]{0,200})",
        C.HTTP_CLIENT_ERROR,
        ("HTTP {status} {detail}", "HTTP {status} {name}"),
        "{advice}",
        read=_by_status,
    ),
    rule(
        "http.status_words",
        "status http code server response returned 400 401 402 403 404 405 406 408 409 410 412 413 "
        "415 422 423 425 428 429 500 501 502 503 504 507 529",
        r"(?:(?:[Ss]tatus(?: [Cc]ode)?|HTTP(?: [Ss]tatus)?(?: [Cc]ode)?|[Rr]esponse(?: code)?|"
        r"[Ss]erver returned HTTP response code|[Ss]tatus code does not indicate success|returned(?: "
        r"error)?|got|with|Error|ERROR|error)(?: of)?[:=]? "
        r"?\(?)(?P<status>[45]\d\d)\b(?P<detail>[^\n]{0,160})",
        C.HTTP_CLIENT_ERROR,
        "{message}",
        "{advice}",
        read=_by_status,
        weight=LIKELY,
    ),
    rule(
        "http.status_phrase",
        "found request unauthorized forbidden internal bad service gateway many conflict gone "
        "unprocessable large",
        r"\b(?P<status>[45]\d\d)[ :]{1,2}(?P<detail>Not Found|Bad Request|Unauthorized|Forbidden|"
        r"Internal Server Error|Bad Gateway|Service (?:Temporarily )?Unavailable|Gateway Time-?[Oo]ut|"
        r"Too Many Requests|Conflict|Gone|Unprocessable (?:Entity|Content)|Method Not Allowed|Not "
        r"Acceptable|Request Timeout|Precondition Failed|Payload Too Large|Request Entity Too Large|"
        r"Content Too Large|Unsupported Media Type|Payment Required|Not Implemented|Locked|Failed "
        r"Dependency)\b[^\n]{0,160}",
        C.HTTP_CLIENT_ERROR,
        "{message}",
        "{advice}",
        read=_by_status,
        weight=LIKELY,
    ),
    rule(
        "http.rate_limit",
        "rate requests throttled throttling attempts many slow slowdown toomanyrequests ratelimited "
        "ratelimit",
        r"(?i:rate[ -]?limit(?:ed|ing)?(?: (?:exceeded|reached|hit))?|too many (?:requests|attempts|"
        r"calls|login attempts)|request was throttled|throttl(?:ed|ing)|slow ?down)[^\n]{0,200}",
        C.RATE_LIMITED,
        "{message}",
        "Wait, then retry more slowly.",
        weight=LIKELY,
    ),
    rule(
        "http.invalid_url",
        "url scheme",
        r"(?P<detail>Invalid URL '?(?P<url>[^'\n]{0,160})'?: [^\n]{1,100}|No scheme "
        r"supplied[^\n]{0,60}|No connection adapters were found for '(?P<url2>[^'\n]{0,160})'|"
        r"unsupported protocol scheme [^\n]{0,60}|Failed to parse URL from [^\n]{1,120}|Request URL is "
        r"missing an 'http://' or 'https://' protocol|Only absolute URLs are supported)",
        C.INVALID_VALUE,
        "{detail}",
        "Pass a full URL.",
        weight=CERTAIN,
    ),
    rule(
        "http.redirects",
        "redirects",
        r"[Ee]xceeded (?:maximum|\d{1,3})? ?(?:allowed )?redirects[^\n]{0,40}|stopped after \d{1,3} "
        r"redirects|too many redirects|Maximum number of redirects",
        C.HTTP_CLIENT_ERROR,
        "{message}",
        "Correct the URL.",
    ),
)
