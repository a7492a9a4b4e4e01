"""Binds the port before the model is loaded, so that a port in use fails at once.

The socket is bound but not listening, so clients are refused until the server is ready. Two
servers that start at the same time may both bind; the second fails when it listens.
"""

from __future__ import annotations

import errno
import socket

from semblend.core.errors import SettingsError

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""A machine without IPv6 may still resolve localhost to ::1."""


def take_port(host: str, port: int) -> list[socket.socket]:
    """Bind every address of `host`; port 0 picks one free port for all.

    Raises
    ------
    SettingsError
        Naming the port that is taken, or a host that is not an address of this machine.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise SettingsError(f"host {host!r}: {error.strerror or error}") from error
    taken: list[socket.socket] = []
    missing: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        place = (address[0], port or (taken[0].getsockname()[1] if taken else 0), *address[2:])
        try:
            taken.append(_bound(family, kind, protocol, place))
        except OSError as error:
            if error.errno in _NOT_HERE:
                missing = error
                continue
            for each in taken:
                each.close()
            raise SettingsError(_said(host, port, error)) from error
    if not taken:
        raise SettingsError(f"host {host!r}: not an address of this machine") from missing
    return taken


def listen(sockets: list[socket.socket], host: str) -> None:
    """Start listening.

    Raises
    ------
    SettingsError
        If another server took the port since it was bound.
    """
    for each in sockets:
        try:
            each.listen()
        except OSError as error:
            raise SettingsError(_said(host, each.getsockname()[1], error)) from error


def _bound(family: int, kind: int, protocol: int, place: tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        # Allow a port whose last server has just stopped.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(place)
    except BaseException:
        opened.close()
        raise
    return opened


def _said(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host}: permission denied; choose another with --port"
    return f"port {port} on {host}: {error.strerror or error}"
