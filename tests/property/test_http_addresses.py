"""Which addresses requests may go to, and which spellings of hosts are understood at all."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.http_hosts import HostPattern, canonical_host
from agenttx_server.tools.http.addresses import may_be_reached
from agenttx_server.tools.http.target import Target

V4 = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
V6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)
SPECIAL_V4 = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "169.254.169.254",
    "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.168.1.1", "198.18.0.1", "224.0.0.1", "239.255.255.255",
    "240.0.0.1", "255.255.255.255",
]  # fmt: skip
SPECIAL_V6 = [
    "::", "::1", "::127.0.0.1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001::1", "2001:db8::1",
    "2002:7f00:1::", "64:ff9b:1::1", "100::1", "3fff::1", "5f00::1",
]  # fmt: skip


@pytest.mark.parametrize("text", SPECIAL_V4)
def test_special_addresses_are_not_reached_in_any_disguise(text):
    address = ipaddress.IPv4Address(text)

    assert not may_be_reached(address)
    assert not may_be_reached(ipaddress.IPv6Address(f"::ffff:{text}"))
    assert not may_be_reached(ipaddress.IPv6Address(f"64:ff9b::{text}"))
    assert not may_be_reached(ipaddress.IPv6Address(f"::{text}"))
    assert not may_be_reached(ipaddress.IPv6Address((0x2002 << 112) | (int(address) << 80)))


@pytest.mark.parametrize("text", SPECIAL_V6)
def test_special_addresses_of_ipv6_are_not_reached(text):
    assert not may_be_reached(ipaddress.IPv6Address(text))


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "192.0.1.1", "223.255.255.255"]
)
def test_public_addresses_are_reached(text):
    assert may_be_reached(ipaddress.IPv4Address(text))
    assert may_be_reached(ipaddress.IPv6Address(f"::ffff:{text}"))
    assert may_be_reached(ipaddress.IPv6Address(f"64:ff9b::{text}"))


def test_public_addresses_of_ipv6_are_reached():
    assert may_be_reached(ipaddress.IPv6Address("2606:4700:4700::1111"))
    assert may_be_reached(ipaddress.IPv6Address("2a00:1450:4001::1"))


@given(V4 | V6)
def test_what_is_reached_is_global_by_python_s_word_too(address):
    if may_be_reached(address):
        meant = address
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is not None:
                meant = address.ipv4_mapped
            elif address in ipaddress.IPv6Network("64:ff9b::/96"):
                meant = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        assert meant.is_global
        special = ("multicast", "loopback", "link_local", "private", "reserved", "unspecified")
        assert not [kind for kind in special if getattr(meant, f"is_{kind}")]


@given(V4)
def test_an_address_is_judged_the_same_however_it_is_carried(address):
    mapped = ipaddress.IPv6Address(f"::ffff:{address}")

    assert may_be_reached(mapped) == may_be_reached(address)


@given(V4, st.integers(0, 32))
def test_a_named_network_is_reached_but_for_multicast_and_nowhere(address, bits):
    network = ipaddress.ip_network((address, bits), strict=False)
    nowhere = address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255"

    assert may_be_reached(address, [network]) is not nowhere
    assert may_be_reached(ipaddress.IPv6Address(f"::ffff:{address}"), [network]) is not nowhere


@pytest.mark.parametrize(
    "host",
    [
        "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.1", "127.0.1", "017700000001", "127.0.0.01",
        "127.0.0.1.", "localhost.", "1.2.3.4.5", "256.1.1.1", "a.0x7f", "a.1", "[::1%eth0]", "[::1", "::1", "[1.2.3.4]",
        "", ".", "a..b", "-a.example", "a b", "exa_mple.c om", "ex\u00e4mple.org", "\uff11\uff12\uff17.0.0.1",
        "127\u30020\u30020\u30021", "example.com\u200b", "%31%32%37.0.0.1", "a" * 64, "*.example.com", "user@host",
    ],
)  # fmt: skip
def test_a_host_that_something_else_could_read_as_another_is_refused(host):
    with pytest.raises(ValueError, match="host"):
        canonical_host(host)


@given(st.text(alphabet="0123456789abcdefx.-_[]:", min_size=1, max_size=40))
def test_what_the_c_library_takes_for_an_address_is_taken_for_the_same_one_or_refused(host):
    try:
        canonical = canonical_host(host)
    except ValueError:
        return
    assert canonical_host(f"[{canonical}]" if ":" in canonical else canonical) == canonical
    try:
        read = socket.inet_aton(host)
    except OSError:
        return
    assert ipaddress.IPv4Address(read) == ipaddress.IPv4Address(canonical)


@pytest.mark.parametrize(
    "url",
    [
        "https://user@example.com/", "https://user:pw@example.com/", "https://example.com@127.0.0.1/",
        "https://127.0.0.1\\@example.com/", "https:\\\\example.com/", "https:/example.com", "//example.com/",
        "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "https://example.com:0/",
        "https://example.com:65536/", "https://example.com:port/", "https://example.com:80:80/",
        "https://exa\nmple.com/", "https://example.com/a\r\nHost: b", "https://example.com/\0", " https://example.com/",
        "https://example.com /", "https://[::1/", "https://", "example.com", "", "https://example.com/" + "a" * 9000,
        "https://example.com/\ud800", "https://2130706433/", "https://example.com/a\\b", "https://example.com\t/",
    ],
)  # fmt: skip
def test_a_url_that_is_not_plain_is_refused_without_being_quoted(url):
    with pytest.raises(ValueError, match=r"URL|host") as refused:
        Target.parse(url)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://Example.COM", "example.com", "/"),
        ("HTTPS://example.com:443/a?b=c#d", "example.com", "/a?b=c"),
        ("http://example.com:8080/a b/ä?q=%41%4", "example.com:8080", "/a%20b/%C3%A4?q=%41%254"),
        ("https://[2606:4700:0:0::1111]:8443/../x", "[2606:4700::1111]:8443", "/../x"),
        ("https://example.com?x=1", "example.com", "/?x=1"),
    ],
)
def test_a_url_has_one_form(url, authority, path):
    target = Target.parse(url)

    assert (target.authority, target.path) == (authority, path)
    assert Target.parse(target.url) == target


@pytest.mark.parametrize(
    ("pattern", "origin", "meant"),
    [
        ("api.example.com", ("https", "api.example.com", 443), True),
        ("API.example.com", ("https", "api.example.com", 443), True),
        ("api.example.com", ("http", "api.example.com", 80), False),
        ("api.example.com", ("https", "api.example.com", 8443), False),
        ("api.example.com", ("https", "api.example.com.evil.org", 443), False),
        ("api.example.com", ("https", "evil-api.example.com", 443), False),
        ("*.example.com", ("https", "a.b.example.com", 443), True),
        ("*.example.com", ("https", "example.com", 443), False),
        ("*.example.com", ("https", "notexample.com", 443), False),
        ("http://billing:8080", ("http", "billing", 8080), True),
        ("http://billing:8080", ("https", "billing", 8080), False),
        ("*", ("https", "anything.org", 443), True),
        ("*", ("http", "anything.org", 80), False),
        ("http://*:*", ("http", "anything.org", 81), True),
        ("https://[::1]:*", ("https", "::1", 9), True),
        ("127.0.0.1", ("https", "127.0.0.1", 443), True),
    ],
)
def test_a_pattern_means_what_it_says(pattern, origin, meant):
    assert HostPattern.parse(pattern).matches(*origin) is meant


@pytest.mark.parametrize(
    "pattern", ["", "https://", "a/b", "a.com:99999", "*.127.1", "a*.com", "ftp://a", "u@h", "a.com."]
)
def test_a_setting_that_is_no_pattern_is_refused(pattern):
    with pytest.raises(ValueError, match=r"host|port|dot"):
        HostPattern.parse(pattern)
