"""Connections that could not be made or were lost: TCP, DNS, TLS."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule
from ..vocabulary import ADVICE

__all__ = ["RULES"]

_ADVICE: Final = ADVICE[C.CONNECTION]
_CERTIFICATE: Final = "Use the right host name, or trust the issuing authority."

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "connection.pool", "retries", r"HTTPS?ConnectionPool\(host='(?P<host>[^'\n]{1,200})', port=(?P<port>\d{1,5})\): Max retries exceeded with url: (?P<path>[^\s]{0,300}) \(Caused by (?P<error>\w{1,60})\((?P<detail>[^\n]{1,500})", C.CONNECTION,
        ("cannot connect to {host}:{port} ({path}): {why}", "cannot connect to {host}:{port}: {why}"), "{advice}", read=lambda match, cause: _pool(match["error"], match["detail"]),
    ),
    rule(
        "connection.aiohttp", "connect", r"Cannot connect to host (?P<host>[^\s]{1,200}) ssl:[^\[\n]{0,60}\[(?P<detail>[^\]\n]{1,200})\]?", C.CONNECTION, "cannot connect to {host}: {detail}", _ADVICE,
    ),
    rule(
        "tls.certificate", "certificate x509 cert", r"(?P<detail>(?:certificate verify failed|CERTIFICATE_VERIFY_FAILED|x509: |unable to get local issuer|unable to verify the first certificate|self[- ]signed certificate|certificate has expired|certificate is not valid|[Hh]ostname mismatch|does not match certificate|Hostname/IP does not match|PKIX path building failed|certificate subject name|No subject alternative|SSL certificate problem|certificate is valid for)[^\n]{0,200})", C.CONNECTION, "TLS: {detail}", _CERTIFICATE,
    ),
    rule(
        "tls.handshake", "ssl tls handshake eproto", r"(?P<detail>(?:SSL: [A-Z_]{3,60}|WRONG_VERSION_NUMBER|wrong version number|handshake failure|SSLV3_ALERT|tlsv1 alert|EOF occurred in violation of protocol|SSL_ERROR_\w{1,40}|remote error: tls|tls: [a-z]|Received fatal alert|SSL routines|SSL connection could not be established|unrecognized_name)[^\n]{0,160})", C.CONNECTION, "TLS: {detail}", "Check the port, the protocol and the certificates on both sides.",
    ),
    rule(
        "dns.lookup", "resolve resolution host name lookup getaddrinfo nodename unknownhostexception known gaierror", r"(?P<detail>(?:dial tcp: )?lookup (?P<host>[\w.\-]{1,253})[^\n]{0,80}: (?:no such host|i/o timeout|server misbehaving|Temporary failure)[^\n]{0,40}|[^\n]{0,160}(?:Name or service not known|Temporary failure in name resolution|nodename nor servname provided|No address associated with hostname|Could not resolve host(?:name)?|Failed to resolve|[Nn]ame resolution (?:failed|failure)|DNS resolution failed|No such host is known|getaddrinfo (?:failed|ENOTFOUND|EAI_AGAIN)|NXDOMAIN|Domain name not found)[^\n]{0,120}|UnknownHostException: [^\n]{1,160})", C.CONNECTION, "{detail}", "Check the host name and DNS, then retry.",
    ),
    rule(
        "connection.refused", "refused", r"(?P<detail>[^\n]{0,200}(?:[Cc]onnection refused|actively refused)[^\n]{0,160})", C.CONNECTION, "{detail}", _ADVICE, weight=LIKELY,
    ),
    rule(
        "connection.psql", "server connection", r"(?:connection to server at \"(?P<host>[^\"\n]{1,200})\"(?: \([^()\n]{1,60}\))?, port (?P<port>\d{1,5}) failed|could not connect to server): (?P<detail>[^\n]{1,200})", C.CONNECTION, ("connection to {host}:{port} failed: {detail}", "could not connect to the server: {detail}"), _ADVICE, weight=LIKELY,
    ),
    rule(
        "connection.lost", "reset closed hang disconnected eof broken aborted peer unexpectedly", r"(?P<detail>[^\n]{0,160}(?:[Cc]onnection (?:was |has been )?(?:reset|aborted|closed|lost|terminated|dropped)|socket hang up|[Ss]erver disconnected|RemoteDisconnected|Remote end closed connection|[Bb]roken pipe|unexpected EOF|peer closed connection|server closed the connection unexpectedly|Premature close|other side closed|transport is closing|connection attempt failed)[^\n]{0,160})", C.CONNECTION, "{detail}", "Retry; the other side closed the connection.", weight=LIKELY,
    ),
    rule(
        "connection.unreachable", "unreachable route", r"(?P<detail>[^\n]{0,160}(?:[Nn]etwork is unreachable|[Nn]o route to host|[Hh]ost is unreachable|[Dd]estination unreachable)[^\n]{0,120})", C.CONNECTION, "{detail}", "Check the address and the network.", weight=LIKELY,
    ),
    rule(
        "connection.failed", "connect connection", r"(?P<detail>[^\n]{0,160}(?:[Ff]ailed to connect|[Cc]ould not connect|[Cc]annot connect|[Uu]nable to connect|[Cc]an't connect|[Cc]onnect(?:ion)? (?:error|failed)|All connection attempts failed|[Ff]ailed to establish a new connection|Could not establish connection|Couldn't connect)[^\n]{0,160})", C.CONNECTION, "{detail}", _ADVICE, weight=LIKELY,
    ),
    rule(
        "node.fetch_failed", "fetch", r"\bfetch failed\b|Failed to fetch\b|NetworkError when attempting|Network Error\b", C.CONNECTION, "{message}", _ADVICE, weight=LIKELY - 1,
    ),
    rule(
        "proxy.failed", "proxy tunnel", r"(?P<detail>[^\n]{0,80}(?:Unable to connect to proxy|Tunnel connection failed|ProxyError|proxy (?:authentication|connection))[^\n]{0,160})", C.CONNECTION, "{detail}", "Check the proxy's address and credentials.", weight=LIKELY,
    ),
)  # fmt: skip


def _pool(error: str, detail: str) -> dict[str, str | None]:
    if error == "SSLError":
        return {"why": detail.rstrip(")'\""), "advice": _CERTIFICATE}
    said = detail.rpartition("]: ")[2] if "]: " in detail else detail.rpartition(": ")[2] if ": " in detail else detail
    for marker in ("[Errno", "Failed to resolve", "timed out"):
        if marker in detail:
            said = detail[detail.index(marker) :]
            break
    timeout = "timed out" in detail or "Timeout" in error
    return {"why": said.rstrip(")'\"\\"), "advice": _ADVICE, "category": C.TIMEOUT.value if timeout else None}
