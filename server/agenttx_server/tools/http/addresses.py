"""Which addresses a request may be sent to: public ones, and networks that the settings name.

For IPv6 what is public is listed, since most of its space is unassigned; for IPv4 what is not (IANA's
registries of special-purpose addresses). An IPv4 address within an IPv6 one is judged as what it is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from agenttx_server.http_hosts import Network

__all__ = ["Address", "may_be_reached"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NOT_PUBLIC_V4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
            "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        ),
    )
)  # fmt: skip
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# Tunnels (Teredo is within the first), documentation, and what the IETF keeps for protocols.
_NOT_PUBLIC_V6: Final = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
# How hosts without IPv4 reach it (RFC 6052): the last four bytes are the address that is meant.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def may_be_reached(address: Address, private_networks: Sequence[Network] = ()) -> bool:
    """Whether a request may be sent to an address: it is public, or in a network that is named.

    Multicast and unspecified addresses never are.
    """
    meant = _meant(address)
    if meant.is_multicast or meant.is_unspecified or meant == ipaddress.IPv4Address("255.255.255.255"):
        return False
    if any(one in network for one in {address, meant} for network in private_networks):
        return True
    if isinstance(meant, ipaddress.IPv4Address):
        return not any(meant in network for network in _NOT_PUBLIC_V4)
    return meant in _GLOBAL_UNICAST and not any(meant in network for network in _NOT_PUBLIC_V6)


def _meant(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, else itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
