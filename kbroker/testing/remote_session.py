"""A session with a coordination store that runs on the event loop of another thread.

The brokers of a test's cluster run in threads of their own, and share one store. A killed broker's session is expired
at once, so no test waits for a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from kbroker.coordination.embedded import EmbeddedSession
from kbroker.coordination.interface import ANY_VERSION, Node, Op, Watch, WatchEvent

T = TypeVar("T")


class RemoteSession:
    """`loop`: that of the broker. `store_loop`: that of the store. Results and watches arrive on the broker's loop."""

    is_connected = True
    timeout_ms = 0

    def __init__(self, session: EmbeddedSession, store_loop: Any, loop: Any) -> None:
        self.session_id = session.session_id
        self._session, self._store_loop, self._loop = session, store_loop, loop

    async def _on_store(self, operation: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(operation, self._store_loop))

    def _watch(self, watch: Watch | None) -> Watch | None:
        if watch is None:
            return None

        def fire(event: WatchEvent) -> None:
            # The loop of a broker that has ended is closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(watch, event)

        return fire

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        return await self._on_store(self._session.get(path, self._watch(watch)))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._on_store(self._session.get_many(paths))

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        return await self._on_store(self._session.exists(path, self._watch(watch)))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return await self._on_store(self._session.children(path, self._watch(watch)))

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self._on_store(self._session.create(path, data, ephemeral=ephemeral))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return await self._on_store(self._session.set(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._on_store(self._session.delete(path, version))

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._on_store(self._session.multi(ops))

    async def sync(self) -> None:
        """Reads always have every change."""

    def on_expired(self, callback: Callable[[], None]) -> None:
        """The session of a broker that runs never expires."""

    async def close(self) -> None:
        await self._on_store(self._session.close())
