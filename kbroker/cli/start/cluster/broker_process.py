"""A broker as a forked process, which shares the memory of the imported modules with its parent and dies with it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from kbroker.cli.common.errors import print_error
from kbroker.cli.start.outcome import failure_text
from kbroker.config import BrokerConfig


class BrokerLogFilter(logging.Filter):
    """Adds the broker to the name of the logger: `kbroker.server` becomes `broker-2.kbroker.server`."""

    def __init__(self, node_id: int) -> None:
        super().__init__()
        self._prefix = f"broker-{node_id}."

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(self._prefix):
            record.name = self._prefix + record.name
        return True


class ForkedBroker:
    """`output` is the read end of a pipe: the broker's address when it is ready, and the end when it has ended."""

    def __init__(self, config: BrokerConfig, pid: int, output: int) -> None:
        self.node_id = config.node_id
        self.pid = pid
        self.output = output
        self.bootstrap = ""
        self.status: int | None = None

    def send_signal(self, number: signal.Signals) -> None:
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def read(self) -> None:
        """Read what the broker has written. Sets `bootstrap` when it is ready, `status` when it has ended."""
        data = os.read(self.output, 4096)
        if data:
            self.bootstrap += data.decode()
            return
        os.close(self.output)
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)

    @property
    def is_ready(self) -> bool:
        return self.bootstrap.endswith("\n")


def fork_broker(config: BrokerConfig, parent_life: tuple[int, int], close: Sequence[int]) -> ForkedBroker:
    """Start a broker.

    `parent_life` are both ends of a pipe on which nothing is written: it ends with the parent. `close` are further file
    descriptors of the parent. Call this before there are threads or an event loop.
    """
    output, ready = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(ready)
        return ForkedBroker(config, pid, output)
    status = 1
    try:
        for descriptor in (output, parent_life[1], *close):
            os.close(descriptor)
        threading.Thread(target=_die_with_parent, args=(parent_life[0],), daemon=True).start()
        status = _run(config, ready)
    finally:
        logging.shutdown()
        os._exit(status)


def _run(config: BrokerConfig, ready: int) -> int:
    from kbroker.broker import run

    for handler in logging.getLogger().handlers:
        handler.addFilter(BrokerLogFilter(config.node_id))
    try:
        return run(config, on_ready=lambda bootstrap: _write(ready, f"{bootstrap}\n"))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        logging.getLogger("kbroker").debug("start failed", exc_info=True)
        print_error(f"broker {config.node_id}: {failure_text(error)}")
        return 1


def _write(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode())


def _die_with_parent(parent_life: int) -> None:
    """Wait for the end of the parent. Without it there is no coordination service, as if it had been killed too."""
    os.read(parent_life, 1)
    os.kill(os.getpid(), signal.SIGKILL)
