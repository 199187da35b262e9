"""A session with a coordination store that runs on the event loop of another thread.

The brokers of a test's cluster run in threads of their own, and share one store. A killed broker's session is expired
at once, so no test waits for a timeout.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kbroker.coordination.embedded import EmbeddedSession
from kbroker.coordination.interface import Watch, WatchEvent


class RemoteSession:
    """A Coordination. `loop`: that of the broker. `store_loop`: that of the store.

    All operations are those of the EmbeddedSession. Results and watches arrive on the broker's loop. The session of a
    broker that runs never expires.
    """

    def __init__(self, session: EmbeddedSession, store_loop: Any, loop: Any) -> None:
        self._session, self._store_loop, self._loop = session, store_loop, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def operation(*args: Any, **options: Any) -> Any:
            remote = [self._remote_watch(each) if callable(each) else each for each in args]
            return await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(found(*remote, **options), self._store_loop)
            )

        return operation

    def _remote_watch(self, watch: Watch) -> Callable[[WatchEvent], None]:
        def fire(event: WatchEvent) -> None:
            # The loop of a broker that has ended is closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(watch, event)

        return fire
