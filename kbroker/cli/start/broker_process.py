"""The brokers of `kbroker start --brokers N`: forked processes that die with their parent, and its predecessor's.

A forked broker shares the memory of the imported modules with its parent.
"""

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from kbroker.cli.common.errors import CliError, print_error
from kbroker.cli.start.directories import broker_directory, is_locked
from kbroker.cli.start.options import failure_text
from kbroker.config import BrokerConfig
from kbroker.config.broker.security import FirstUser
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.real_disk import lock_owner
from kbroker.storage.file_names import LOCK


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


def fork_broker(
    config: BrokerConfig, parent_life: tuple[int, int], close: Sequence[int], first_users: Sequence[FirstUser]
) -> ForkedBroker:
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
        status = _run(config, ready, first_users)
    finally:
        logging.shutdown()
        os._exit(status)


def _run(config: BrokerConfig, ready: int, first_users: Sequence[FirstUser]) -> int:
    from kbroker.cli.start.run import run

    # The parent is the service.
    os.environ.pop("NOTIFY_SOCKET", None)
    for handler in logging.getLogger().handlers:
        handler.addFilter(BrokerLogFilter(config.node_id))
    try:
        return run(config, on_ready=lambda bootstrap: _write(ready, f"{bootstrap}\n"), first_users=first_users)
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


log = EventLogger("kbroker")

# A broker whose coordination service has ended takes about 10 s to stop cleanly; after this time it is killed.
STOP_S = 30.0
KILLED_S = 10.0
POLL_S = 0.05


def end_orphans(directory: str, brokers: int) -> None:
    """End the brokers of an earlier parent. The caller has locked `directory`, so there is no other parent.

    Raises CliError if the process that uses a data directory is not certainly one of them.
    """
    for node_id in range(1, brokers + 1):
        path = f"{broker_directory(directory, node_id)}/{LOCK}"
        if is_locked(path):
            _end(node_id, path)


def _end(node_id: int, path: str) -> None:
    if _stop_owner(node_id, path):
        # A child process of the broker has the lock, too, and ends just after it.
        deadline_s = time.monotonic() + KILLED_S
        while is_locked(path) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
    if is_locked(path):
        raise CliError(
            f"{os.path.dirname(path)} is in use by a process that is not known to be a broker of this cluster: end it, "
            "then start again"
        )


def _stop_owner(node_id: int, path: str) -> bool:
    """Stop the process that has locked the file, if it is certainly a broker. Returns whether it is."""
    owner = lock_owner(path)
    if owner is None:
        return False
    try:
        descriptor = os.pidfd_open(owner[0])
    except ProcessLookupError:
        return True
    try:
        # Checked once a descriptor refers to the process, which it cannot do to a later one with the same id.
        if lock_owner(path) != owner or not _has_locked(owner[0], path):
            return False
        log.warning("ending a broker of an earlier parent", broker=node_id, pid=owner[0])
        _stop(descriptor, node_id)
        return True
    finally:
        os.close(descriptor)


def _stop(descriptor: int, node_id: int) -> None:
    """Stop a process, with SIGKILL if it does not end in time."""
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    for number, max_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILLED_S)):
        signal.pidfd_send_signal(descriptor, number)
        if number is signal.SIGTERM:
            # It may have been stopped, and cannot end then.
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        if ended.poll(max_s * 1000):
            return
        log.error("a broker of an earlier parent does not end", broker=node_id, signal=number.name, waited_s=max_s)


def _has_locked(pid: int, path: str) -> bool:
    """Return whether a process has locked a file, by what the kernel says about its file descriptors."""
    with suppress(OSError):
        file = os.stat(path)
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), file):
                    with open(f"/proc/{pid}/fdinfo/{name}") as info:
                        if "FLOCK" in info.read():
                            return True
    return False
