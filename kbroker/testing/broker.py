"""One broker for tests, `kbroker.testing.Broker`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.testing.broker_thread import BrokerThread
from kbroker.testing.disk import DiskControl
from kbroker.testing.kafka import Kafka


class InProcessBroker(Kafka):
    """One broker. `disk`: fill() and free()."""

    def __init__(
        self,
        configs: Mapping[str, Any] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        port: int = 0,
    ) -> None:
        """`port`: of 127.0.0.1; 0 is any free port, which the broker keeps when it is started again."""
        super().__init__(configs, directory)
        self.disk = DiskControl()
        self._port = port
        self._thread: BrokerThread | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def running(self) -> list[BrokerThread]:
        self._check_process()
        return [] if self._thread is None else [self._thread]

    def open(self) -> None:
        self._open_directory()
        try:
            self.start()
            self._create_internal_topics()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._pid == os.getpid():
            self.stop()
        self._remove_directory()

    def renew(self) -> None:
        """Start again at the same address, without data, in the time of the machine."""
        self.kill()
        shutil.rmtree(os.path.join(self._directory, "data"), ignore_errors=True)
        self.movable_clock.offset_ns = 0
        self.start()
        self._create_internal_topics()

    def start(self) -> None:
        """Start the broker again, on its port and with its data. No effect while it runs."""
        self._check_process()
        if self._thread is not None:
            return
        configs = {
            **self._configs,
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "log.dirs": os.path.join(self._directory, "data"),
        }
        self._thread = BrokerThread(configs, self.movable_clock, self.disk, self.request_log)
        self._port = int(self._thread.bootstrap.rpartition(":")[2])

    def stop(self) -> None:
        """Stop the broker as an operator does. No effect if it does not run."""
        self._end(BrokerThread.stop)

    def kill(self) -> None:
        """Kill the broker in the middle of whatever it does. No effect if it does not run."""
        self._end(BrokerThread.kill)

    def _end(self, end: Callable[[BrokerThread], None]) -> None:
        self._check_process()
        thread, self._thread = self._thread, None
        if thread is not None:
            end(thread)
