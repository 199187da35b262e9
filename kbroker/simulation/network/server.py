"""A listener of the simulated network."""

import asyncio
from collections.abc import Callable
from typing import Any

from kbroker.simulation.network.tcp import Address

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

LOOPBACK = "127.0.0.1"


def host_of(loop: asyncio.AbstractEventLoop) -> str:
    """Return the host whose loop this is."""
    host: str = getattr(loop, "host", LOOPBACK)
    return host


class SimSocket:
    """The part of a listening socket that servers use."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address[0] or "0.0.0.0", self._address[1]

    def fileno(self) -> int:
        """Return a number that means that the socket is open."""
        return 0

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Do nothing: options have no effect here."""


class SimServer(asyncio.AbstractServer):
    """A listener. Closing it leaves its connections open, as in asyncio. `unbind` releases its addresses."""

    def __init__(
        self,
        factory: ProtocolFactory,
        addresses: list[Address],
        loop: asyncio.AbstractEventLoop,
        unbind: Callable[["SimServer"], None],
    ) -> None:
        self.factory = factory
        self.addresses = addresses
        self.loop = loop
        self.sockets: tuple[SimSocket, ...] = tuple(SimSocket(address) for address in addresses)
        self._unbind = unbind
        self._serving = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = True

    async def serve_forever(self) -> None:
        self._serving = True
        await self.loop.create_future()

    def close(self) -> None:
        self._serving = False
        self.sockets = ()
        self._unbind(self)

    async def wait_closed(self) -> None:
        pass

    async def __aexit__(self, *details: Any) -> None:
        self.close()
