"""One broker for tests, `kbroker.testing.Broker`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from typing import Any

from kbroker.client.admin import describe_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerConnection
from kbroker.client.group_descriptions import describe_group
from kbroker.client.groups import list_groups
from kbroker.client.requests import Address
from kbroker.config import BrokerConfig, ConfigError
from kbroker.testing.broker_thread import BrokerThread
from kbroker.testing.faults import TEST_CLIENT_ID
from kbroker.testing.kafka import Kafka

BROKER_ID = 1
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


class LocalClient(ClusterClient):
    """A client of one broker on this machine, which may advertise an address that only others reach."""

    def _connect(self, address: Address) -> BrokerConnection:
        return super()._connect(self._bootstrap[0])


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
        super().__init__({"listeners": f"PLAINTEXT://127.0.0.1:{port}", **(configs or {})}, directory, 1)
        self.disk = self.disks[BROKER_ID]

    @property
    def is_running(self) -> bool:
        return BROKER_ID in self._threads

    def client(self) -> ClusterClient:
        return LocalClient(list(self._local.values()), client_id=TEST_CLIENT_ID)

    def _broker_configs(self, broker_id: int) -> Mapping[str, str]:
        return {"log.dirs": os.path.join(self._directory, "data")}

    def start(self) -> None:
        """Start the broker again, on its port and with its data. No effect while it runs."""
        self._start(BROKER_ID)

    def stop(self) -> None:
        """Stop the broker as an operator does. No effect if it does not run."""
        self._end(BROKER_ID, BrokerThread.stop)

    def kill(self) -> None:
        """Kill the broker in the middle of whatever it does. No effect if it does not run."""
        self._end(BROKER_ID, BrokerThread.kill)

    def advertise(self, address: str) -> None:
        """Start again with another address for clients, HOST:PORT, such as that of a port of a container.

        Raises ValueError.
        """
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f"an address is HOST:PORT, not {address!r}")
        former = self._configs
        first, *others = former.get("advertised.listeners", former["listeners"]).split(",")
        texts = [f"{first.partition('://')[0]}://{address}", *others]
        configs = {**former, "advertised.listeners": ",".join(texts)}
        try:
            BrokerConfig.load(configs)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        self._configs = configs
        self.stop()
        self.start()

    def reset(self, *, keep_data: bool = False) -> None:
        """Undo what a test has done: faults, recorded requests, a full disk, the end of the broker.

        The broker starts again at the same address, empty and in the time of the machine; with `keep_data` only after a
        test that has moved the clock or filled the disk.
        """
        self.request_log.clear()
        self.disk.free()
        if keep_data and not self.clock.is_moved and not self.disk.was_full:
            self.start()
            return
        self.disk.was_full = False
        self.kill()
        shutil.rmtree(os.path.join(self._directory, "data"), ignore_errors=True)
        self.clock.offset_ns = 0
        self.start()
        self._create_internal_topics()

    def topics(self) -> list[str]:
        """Return the names of all topics but the internal ones."""
        with self.client() as cluster:
            return sorted(topic.name for topic in describe_topics(cluster) if not topic.is_internal)

    def leftovers(self, topics_before: Collection[str] = ()) -> list[str]:
        """Return what a test has left: faults, topics, groups with members; the last two if the broker runs."""
        left = [f"the fault {fault}" for fault in self.request_log.faults]
        if not self.is_running:
            return [*left, "a stopped broker"]
        left += [f"the topic {name}" for name in self.topics() if name not in topics_before]
        with self.client() as cluster:
            for group in list_groups(cluster):
                members = describe_group(cluster, group.group_id).members
                if members:
                    clients = ", ".join(sorted({member.client_id for member in members}))
                    left.append(f"{len(members)} members of the group {group.group_id} ({clients})")
        return left
