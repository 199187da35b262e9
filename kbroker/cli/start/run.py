"""The process of a broker: its event loop, its garbage collection, and the signals that stop it."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.broker import Broker, log
from kbroker.runtime.system import new_event_loop, notify_service_manager, raise_descriptor_limit, system_environment

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.config.broker.security import FirstUser

# A garbage collection of the oldest generation visits every live object. So the objects created at startup are frozen,
# and later collections are made rare. One of the middle generation, at every second collection, visits at most some
# 4,000 objects, which takes half a millisecond. With a second threshold of 1 it would visit three times the first one,
# and the collections together would take no less: 1.7 visits of each object instead of 1.5.
GC_THRESHOLDS = (2_000, 0, 12_000)


def run(config: BrokerConfig, *, on_ready: Callable[[str], None], first_users: Sequence[FirstUser] = ()) -> int:
    """Run a broker until SIGTERM, SIGINT or SIGHUP. Returns the exit status; raises errors of the startup."""
    raise_descriptor_limit()
    # Imported modules live until the process ends: no later collection has to scan them.
    gc.freeze()
    gc.enable()
    loop = new_event_loop()
    try:
        return loop.run_until_complete(_serve(loop, config, on_ready, first_users))
    finally:
        loop.close()


async def _serve(
    loop: asyncio.AbstractEventLoop,
    config: BrokerConfig,
    on_ready: Callable[[str], None],
    first_users: Sequence[FirstUser],
) -> int:
    broker = Broker(system_environment(loop), config, first_users=first_users)

    def on_signal(number: signal.Signals) -> None:
        if not broker.stopped.done():
            log.info("stopping", signal=number.name)
            notify_service_manager("STOPPING=1")
            broker.stopped.set_result(None)

    for number in stop_signals():
        loop.add_signal_handler(number, on_signal, number)
    try:
        bootstrap = await broker.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        log.info("serving", bootstrap=bootstrap, data=config.log_dirs[0])
        on_ready(bootstrap)
        notify_service_manager("READY=1")
        failure = await broker.stopped
    finally:
        await broker.stop()
    log.info("stopped")
    return 0 if failure is None else 1


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop the broker cleanly. As with a JVM, SIGHUP is included unless nohup started it."""
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
    return [signal.SIGTERM, signal.SIGINT, *hangup]
