"""Connections that could not be made or were lost: TCP, DNS, TLS."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule
from ..vocabulary import ADVICE

__all__ = ["RULES"]

_ADVICE: Final = ADVICE[C.CONNECTION]
_CERTIFICATE: Final = "Use the right host name, or trust the issuing authority."

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "connection.pool",
        "retries",
        r"HTTPS?ConnectionPool\(host='(?P<host>[^'\n]{1,200})', port=(?P<port>\d{1,5})\): Max retries "
        r"exceeded with url: (?P<path>[^\s]{0,300}) \(Caused by "
        r"(?P<error>\w{1,60})\((?P<detail>[^\n]{1,500})",
        C.CONNECTION,
        ("cannot connect to {host}:{port} ({path}): {why}", "cannot connect to {host}:{port}: {why}"),
        "{advice}",
        read=lambda match, cause: _pool(match["error"], match["detail"]),
    ),
    rule(
        "connection.aiohttp",
        "connect",
        r"Cannot connect to host (?P<host>[^\s]{1,200}) ssl:[^\[\n]{0,60}\[(?P<detail>[^\n]{1,300}?)\]?$",
        C.CONNECTION,
        "cannot connect to {host}: {detail}",
        _ADVICE,
        flags=re.MULTILINE,
    ),
    rule(
        "tls.certificate",
        "certificate x509 cert pkix certificate_verify_failed hostname altnames",
        r"(?P<detail>(?:certificate verify failed|CERTIFICATE_VERIFY_FAILED|x509: |unable to get local "
        r"issuer|unable to verify the first certificate|self[- ]signed certificate|certificate has "
        r"expired|certificate (?:for )?\S{1,120} (?:has )?expired|certificate is not valid|[Hh]ostname "
        r"mismatch|does not match certificate|Hostname/IP does not match|PKIX path building failed|"
        r"certificate subject name|No subject alternative|SSL certificate problem|certificate is valid "
        r"for)[^\n]{0,200})",
        C.CONNECTION,
        "TLS: {detail}",
        _CERTIFICATE,
    ),
    rule(
        "tls.handshake",
        "ssl tls handshake eproto wrong_version_number alert unrecognized_name",
        r"(?P<detail>(?:SSL: [A-Z_]{3,60}|WRONG_VERSION_NUMBER|wrong version number|handshake failure|"
        r"SSLV3_ALERT|tlsv1 alert|EOF occurred in violation of protocol|SSL_ERROR_\w{1,40}|remote "
        r"error: tls|tls: [a-z]|Received fatal alert|SSL routines|SSL connection could not be "
        r"established|unrecognized_name)[^\n]{0,160})",
        C.CONNECTION,
        "TLS: {detail}",
        "Check the port, the protocol and the certificates on both sides.",
    ),
    rule(
        "dns.lookup",
        "resolve resolution host name lookup getaddrinfo nodename unknownhostexception known gaierror "
        "nxdomain",
        r"no such host|: server misbehaving|name or service not known|failure in name resolution|"
        r"nodename nor servname|no address associated with hostname|could not resolve host|failed to "
        r"resolve|could not translate host name|name resolution (?:failed|failure)|dns resolution "
        r"failed|getaddrinfo (?:failed|enotfound|eai_again)|nxdomain|unknownhostexception|dns_probe",
        C.CONNECTION,
        ("{said}",),
        "Check the host name and DNS, then retry.",
        folded=True,
        read=lambda match, cause: (
            {
                "said": f"unknown host {cause.message}"
                if cause.type_name.endswith("UnknownHostException")
                else None
            }
            if cause.type_name.endswith("UnknownHostException")
            else {"said": _line(cause.text, match.start())}
        ),
    ),
    rule(
        "proxy.failed",
        "proxy tunnel proxyerror",
        r"unable to connect to proxy|tunnel connection failed|proxyerror|proxy (?:authentication|"
        r"connection)",
        C.CONNECTION,
        "{line}",
        "Check the proxy's address and credentials.",
        weight=LIKELY,
        folded=True,
    ),
    rule(
        "connection.refused",
        "refused",
        r"connection refused|actively refused|connection was refused",
        C.CONNECTION,
        "{line}",
        _ADVICE,
        weight=LIKELY,
        folded=True,
    ),
    rule(
        "connection.psql",
        "server connection",
        r"(?:connection to server at \"(?P<host>[^\"\n]{1,200})\"(?: \([^()\n]{1,60}\))?, port "
        r"(?P<port>\d{1,5}) failed|could not connect to server): (?P<detail>[^\n]{1,200})",
        C.CONNECTION,
        ("connection to {host}:{port} failed: {detail}", "could not connect to the server: {detail}"),
        _ADVICE,
        weight=LIKELY,
    ),
    rule(
        "connection.lost",
        "reset closed hang disconnected disconnect eof broken aborted lost peer unexpectedly "
        "remotedisconnected terminated dropped failed closing close",
        r"connection (?:was |has been |is )?(?:unexpectedly |forcibly )?(?:broken|reset|aborted|closed|lost|"
        r"terminated|dropped)|socket hang up|server disconnected|remotedisconnected|remote end closed "
        r"connection|broken pipe|unexpected eof|peer closed connection|closed the connection "
        r"unexpectedly|premature close|other side closed|transport is closing|forcibly closed|"
        r"connection attempt failed",
        C.CONNECTION,
        "{line}",
        "Retry; the other side closed the connection.",
        weight=LIKELY,
        folded=True,
    ),
    rule(
        "connection.unreachable",
        "unreachable route",
        r"network is unreachable|no route to host|host is unreachable|destination unreachable",
        C.CONNECTION,
        "{line}",
        "Check the address and the network.",
        weight=LIKELY,
        folded=True,
    ),
    rule(
        "connection.failed",
        "connect connection connecting",
        r"failed to connect|could not connect|couldn't connect|cannot connect|can't connect|unable to "
        r"connect|connect(?:ion)? (?:error|failed)|error \d{1,6} connecting to|all connection attempts "
        r"failed|failed to establish a new connection|could not establish (?:a )?connection|connection "
        r"could not be (?:made|established)",
        C.CONNECTION,
        "{line}",
        _ADVICE,
        weight=LIKELY,
        folded=True,
    ),
    rule(
        "node.fetch_failed",
        "fetch",
        r"\bfetch failed\b|Failed to fetch\b|NetworkError when attempting|Network Error\b",
        C.CONNECTION,
        "{message}",
        _ADVICE,
        weight=LIKELY - 1,
    ),
)


def _line(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    return text[start:].partition("\n")[0].strip()


def _pool(error: str, detail: str) -> dict[str, str | None]:
    if error == "SSLError":
        return {"why": detail.rstrip(")'\""), "advice": _CERTIFICATE}
    said = (
        detail.rpartition("]: ")[2]
        if "]: " in detail
        else detail.rpartition(": ")[2]
        if ": " in detail
        else detail
    )
    for marker in ("[Errno", "Failed to resolve", "timed out"):
        if marker in detail:
            said = detail[detail.index(marker) :]
            break
    timeout = "timed out" in detail or "Timeout" in error
    if "proxy" in error.lower():
        said = f"unable to connect to proxy: {said}"
    return {"why": said.rstrip(")'\"\\"), "advice": _ADVICE, "category": C.TIMEOUT.value if timeout else None}
