"""Taking an address for ourselves, or saying in one line why it can't be had."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import grpc
import grpc.aio

from agenttx_server.listen_address import ListenAddress

__all__ = ["AddressRefused", "check_port", "listen"]


class AddressRefused(Exception):
    """The server can't listen where it was told to; the message is one line."""


def listen(
    server: grpc.aio.Server,
    address: ListenAddress,
    unix_socket_mode: int,
    *,
    shares_port: bool = False,
    credentials: grpc.ServerCredentials | None = None,
) -> tuple[ListenAddress, AbstractContextManager[object]]:
    """Bind an address; return it with its real port, and what to close after the server has stopped.

    ``shares_port``: other processes listen there too, on purpose. ``credentials``: those of TLS, for a port.

    Raises:
        AddressRefused: it is taken, not ours to take, or doesn't exist.
    """
    if address.socket_path is not None:
        return _listen_unix(server, address, address.socket_path, unix_socket_mode)
    return _listen_tcp(server, address, credentials, shares_port=shares_port), nullcontext()


def _listen_tcp(
    server: grpc.aio.Server,
    address: ListenAddress,
    credentials: grpc.ServerCredentials | None,
    *,
    shares_port: bool,
) -> ListenAddress:
    if address.port and not shares_port:
        check_port(address)
    try:
        port = (
            server.add_insecure_port(str(address))
            if credentials is None
            else server.add_secure_port(str(address), credentials)
        )
    except RuntimeError as error:
        raise AddressRefused(f"can't listen on {address}: {error}") from error
    return ListenAddress(address.host, port)


def check_port(address: ListenAddress) -> None:
    """Bind every address of the host for a moment; raise AddressRefused if one is taken.

    gRPC is content with one of several and tells no reason; and its option against sharing a
    port with another server is no help where that one was the first and shares.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise AddressRefused(f"can't listen on {address}: {error.strerror}") from error
    for family, kind, protocol, _, bound in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(bound)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL and len(found) > 1:
                    continue  # A host without IPv6 still names ::1.
                raise _refused(address, error) from error


def _refused(address: ListenAddress, error: OSError) -> AddressRefused:
    if error.errno == errno.EADDRINUSE:
        return AddressRefused(
            f"can't listen on {address}: the address is in use by another process; stop that one, or give another "
            "--listen (with port 0 the system picks a free one)"
        )
    return AddressRefused(f"can't listen on {address}: {os.strerror(error.errno or 0)}")


def _listen_unix(
    server: grpc.aio.Server, address: ListenAddress, path: Path, mode: int
) -> tuple[ListenAddress, AbstractContextManager[object]]:
    # gRPC removes whatever socket is there, also one that is being served: the second server would take the
    # first one's clients, and the first one's stop would then remove the second one's socket. Hence the lock.
    with ExitStack() as stack:
        lock = path.with_name(path.name + ".lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and not path.is_socket():
                raise AddressRefused(
                    f"can't listen on {address}: there is a file of this name that is no socket"
                )
            server.add_insecure_port(f"unix:{path}")
            path.chmod(mode)
        except BlockingIOError as error:
            raise AddressRefused(
                f"can't listen on {address}: another server does; stop that one, or give another --listen"
            ) from error
        except OSError as error:
            raise _refused(address, error) from error
        except RuntimeError as error:
            raise AddressRefused(f"can't listen on {address}: {error}") from error
        return address, stack.pop_all()
    raise AssertionError
