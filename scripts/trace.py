"""Count the functions that a request runs through: `.venv/bin/python -m scripts.trace [--write] [--list WALK]`.

Three brokers run as processes. Each of them records the functions of kbroker and protocol that it calls between a
request and its response, also those of periodic work. Each request is repeated, and what does not run every time is
left out; so are getters, comprehensions, and protocol/varints.py. The figures are those of the broker that serves the
request: the leader, the group coordinator, the controller.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.client.admin import describe_cluster
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerConnection
from kbroker.client.requests import BrokerError, check
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k11_classic_groups import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.records.batch import build_batch
from scripts.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- scripts.trace -->\n", "<!-- end -->\n"
REPEATS = 6
# The file of the function that handles the request: the broker that has called it is the one that counts.
WALKS = {
    "Produce, acks=all": "kbroker/api/k00_produce.py",
    "JoinGroup": "kbroker/api/k11_classic_groups.py",
    "CreateTopics": "kbroker/api/k19_create_topics.py",
}
# Every Python process that starts with this directory in its path has these handlers.
RECORDER = """
import os, signal, sys
seen, roots, folder = set(), {roots!r}, {folder!r}
# `return self._name` has 16 bytes, a comparison of it 24.
GETTER_BYTES = 24
is_on = False
def profile(frame, event, argument):
    if is_on and event == "call":
        seen.add(frame.f_code)
def on_switch(event, stacks):
    # A greenlet does not inherit the function.
    if is_on:
        sys.setprofile(profile)
def start(number, frame):
    global is_on
    import greenlet
    seen.clear()
    is_on = True
    greenlet.settrace(on_switch)
    sys.setprofile(profile)
    open(f"{{folder}}/{{os.getpid()}}.on", "w").close()
def stop(number, frame):
    global is_on
    is_on = False
    sys.setprofile(None)
    path = f"{{folder}}/{{os.getpid()}}"
    with open(path + ".part", "w") as file:
        for code in list(seen):
            is_getter = len(code.co_code) <= GETTER_BYTES and code.co_argcount <= 1
            if code.co_filename.startswith(roots) and not code.co_name.endswith(("comp>", "expr>")) and not is_getter:
                print(os.path.relpath(code.co_filename, {root!r}), code.co_qualname, file=file)
    os.rename(path + ".part", path + ".seen")
signal.signal(signal.SIGUSR1, start)
signal.signal(signal.SIGUSR2, stop)
"""

Functions = frozenset[tuple[str, str]]


@contextmanager
def running_cluster(folder: Path) -> Iterator[tuple[list[int], str]]:
    """Start three brokers. Yields their process ids and the bootstrap address."""
    roots = tuple(f"{ROOT}/{package}/" for package in ("kbroker", "protocol"))
    (folder / "sitecustomize.py").write_text(RECORDER.format(roots=roots, folder=str(folder), root=str(ROOT)))
    address = f"127.0.0.1:{free_ports(3)}"
    command = [sys.executable, "-m", "kbroker", "start", "--brokers", "3", "--data-dir", f"{folder}/data",
               "--listen", address, "--set", "group.initial.rebalance.delay.ms=0",
               "--set", "min.insync.replicas=2", "--log-level", "error"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        try:
            assert parent.stdout is not None
            if "ready" not in parent.stdout.readline():
                raise SystemExit("the brokers have not started")
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
            yield [int(pid) for pid in children.split()], address
        finally:
            parent.terminate()


def wait_for(paths: list[Path]) -> None:
    deadline = time.monotonic() + 30
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline:
            raise SystemExit(f"no answer from a broker: {paths}")
        time.sleep(0.002)


class Tracer:
    """`pids`: the brokers, which write what they have recorded into `folder`."""

    def __init__(self, folder: Path, pids: list[int]) -> None:
        self._folder, self._pids = folder, pids

    def trace(self, handler: str, send: Callable[[], None]) -> Functions:
        """Return the functions that run on the broker with this handler each time, while `send` waits for its response.

        The first request is not recorded: it fills caches.
        """
        send()
        return frozenset.intersection(*(self._trace_once(handler, send) for _ in range(REPEATS)))

    def _trace_once(self, handler: str, send: Callable[[], None]) -> Functions:
        # Followers ask again, and nothing of the request before is left.
        time.sleep(0.3)
        self._signal(signal.SIGUSR1, ".on")
        send()
        self._signal(signal.SIGUSR2, ".seen")
        for pid in self._pids:
            path = self._folder / f"{pid}.seen"
            lines = path.read_text().splitlines()
            path.unlink()
            (self._folder / f"{pid}.on").unlink()
            functions = frozenset((file, name) for file, _, name in (line.partition(" ") for line in lines))
            if any(file == handler for file, _ in functions):
                found = functions
        return frozenset((file, name) for file, name in found if file != "protocol/varints.py")

    def _signal(self, number: signal.Signals, suffix: str) -> None:
        for pid in self._pids:
            os.kill(pid, number)
        wait_for([self._folder / f"{pid}{suffix}" for pid in self._pids])


class Requests:
    """Each request that is traced, as a method that sends it once and waits for its response."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._created = 0
        self._controller = cluster.broker(describe_cluster(cluster).controller_id)
        self._create_topic("produced")
        self._leader = self._wait_for_leader("produced")
        self._coordinator = cluster.broker(cluster.find_coordinator("group").node_id)
        self._member = ""

    def _wait_for_leader(self, topic: str) -> BrokerConnection:
        deadline = time.monotonic() + 30
        while True:
            try:
                return self._cluster.leader(topic, 0)
            except BrokerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def produce(self) -> None:
        batch = build_batch([(int(time.time() * 1000), b"key", b"value", ())])
        partition = PartitionProduceData(index=0, records=bytes(batch))
        topic = TopicProduceData(name="produced", partition_data=[partition])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
        response = self._leader.request(request, ProduceResponse)
        check(response.responses[0].partition_responses[0].error_code, "Produce")

    def join_group(self) -> None:
        """Join again as the only member: the rebalance completes at once."""
        response = self._join()
        while response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member = response.member_id
            response = self._join()
        check(response.error_code, "JoinGroup")

    def _join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id="group",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id=self._member,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=os.urandom(8))],
        )
        return self._coordinator.request(request, JoinGroupResponse)

    def create_topic(self) -> None:
        self._created += 1
        self._create_topic(f"topic-{self._created}")

    def _create_topic(self, name: str) -> None:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=3)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        check(self._controller.request(request, CreateTopicsResponse).topics[0].error_code, "CreateTopics")


def table(walks: dict[str, Functions]) -> str:
    rows = [f"| {name} | {len(walk)} | {len({file for file, _ in walk})} |" for name, walk in walks.items()]
    return "\n".join(["| request | functions | files |", "|---|---|---|", *rows, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update the table in docs/architecture.md")
    parser.add_argument("--list", metavar="REQUEST", choices=WALKS, help="print the functions of this request")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, running_cluster(Path(name)) as (pids, address):
        host, _, port = address.partition(":")
        with ClusterClient([(host, int(port))], client_id="trace") as cluster:
            tracer, requests = Tracer(Path(name), pids), Requests(cluster)
            sends = (requests.produce, requests.join_group, requests.create_topic)
            walks = {
                walk: tracer.trace(handler, send) for (walk, handler), send in zip(WALKS.items(), sends, strict=True)
            }
    if options.list:
        print(*(f"{file}: {function}" for file, function in sorted(walks[options.list])), sep="\n")
    print(table(walks), end="")
    if options.write:
        text = PAGE.read_text()
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table(walks) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
