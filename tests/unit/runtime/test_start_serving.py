"""Listening on a port that another process has bound too."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from kbroker.runtime.system import start_serving


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_port_at_which_another_process_listens_first(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop], is_taken: bool
) -> None:
    """Both processes can bind the port, because neither listens yet."""

    async def serve(other: socket.socket) -> None:
        host, port = other.getsockname()
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
        # uvloop keeps the objects of sockets for which it was asked.
        assert server.sockets[0].getsockname() == (host, port)
        if is_taken:
            other.listen()
            with pytest.raises(OSError, match=r"(?i)address already in use"):
                await start_serving(server)
        else:
            await start_serving(server)
            socket.create_connection((host, port)).close()
        server.close()

    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        loop = new_event_loop()
        loop.run_until_complete(serve(other))
        loop.close()
