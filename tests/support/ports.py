"""Ports of this machine for servers of tests."""

import random
import socket


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports that are free.

    They lie below those that the system gives to outgoing connections, of which one may take a port between two launches.
    """
    while True:
        first = random.SystemRandom().randrange(10_000, 32_000)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
