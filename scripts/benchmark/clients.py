"""The client programs, the same for every server: Kafka's performance tools, and some small ones."""

import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping

import crc32c

from scripts.benchmark.peers import HERE, Peer, java

# Much longer than any run of transactions takes.
STUCK_S = 180
# Clients in Java, as source files that `java` compiles.
PROGRAMS = HERE / "programs"

_PRODUCED = re.compile(r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec")


def run(command: list[str], timeout: float = 300) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise SystemExit(f"client failed: {' '.join(command[:8])} ...\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def create_topic(peer: Peer, topic: str, partitions: int, **configs: str) -> None:
    """`configs`: topic configs, with `_` in place of `.` in their names."""
    tiny = TinyClient(peer.port)
    try:
        tiny.create_topic(topic, partitions, {name.replace("_", "."): value for name, value in configs.items()})
    finally:
        tiny.close()


def with_warm_up(records: int) -> int:
    """Return how many records `produce` writes."""
    return records + max(records // 5, 1)


def produce(peer: Peer, topic: str, records: int, size: int, *properties: str, throughput: int = -1) -> float:
    """Run ProducerPerformance; return records per second after its warm-up."""
    total = with_warm_up(records)
    output = run(
        java("org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", peer.bootstrap, "--topic", topic,
             "--num-records", str(total), "--warmup-records", str(total - records), "--record-size", str(size),
             "--throughput", str(throughput), "--reporting-interval", "600000",
             "--command-property", "acks=all", "enable.idempotence=true", *properties)
    )  # fmt: skip
    found = _PRODUCED.findall(output)
    if not found:
        raise SystemExit(f"ProducerPerformance printed no summary:\n{output}")
    return float(found[-1][1])


def consume(peer: Peer, topic: str, records: int, *properties: str) -> float:
    """Run ConsumerPerformance; return records per second, without the time for joining the group."""
    given = ["--command-property", *properties] if properties else []
    output = run(
        java("org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", peer.bootstrap, "--topic", topic,
             "--num-records", str(records), "--hide-header", "--timeout", "60000", *given)
    )  # fmt: skip
    row = [part.strip() for part in output.strip().splitlines()[-1].split(",")]
    if int(row[4]) < records:
        raise SystemExit(f"ConsumerPerformance read {row[4]} of {records} records")
    return float(row[-1])


def fill(peer: Peer, topic: str, megabytes: int, keys: int) -> None:
    """Write records of 100 B to 1 KiB with random keys out of `keys`, the same for every server (Changelog.java)."""
    run(java(str(PROGRAMS / "Changelog.java"), peer.bootstrap, topic, str(megabytes), str(keys)))


def transactions(peer: Peer, topic: str, producers: int, count: int, records: int, abort_every: int = 0) -> float:
    """Write transactions of records of 100 bytes (Transactions.java); return transactions per second.

    Apache Kafka 4.3.1 sometimes leaves a transactional id in a state in which it returns CONCURRENT_TRANSACTIONS
    forever, and the client retries forever. Such a run is reported and repeated.
    """
    numbers = [str(number) for number in (producers, count, records, abort_every)]
    for attempt in range(3):
        ids = f"{topic}-{attempt}"
        try:
            return float(run(java(str(PROGRAMS / "Transactions.java"), peer.bootstrap, topic, ids, *numbers), STUCK_S))
        except subprocess.TimeoutExpired:
            print(f"\n{peer.name}: transactions did not end in {STUCK_S} s, repeated", file=sys.stderr, flush=True)
    raise SystemExit(f"{peer.name}: transactions do not end")


def latency(peer: Peer, topic: str, mode: str, records: int, rate: int = 2000) -> tuple[float, float]:
    """Return (p50, p99) in microseconds; `mode` is produce or end-to-end."""
    command = java(str(PROGRAMS / "Latency.java"), peer.bootstrap, topic, mode, str(records), str(rate))
    p50, p99, _ = run(command).split()
    return float(p50), float(p99)


class TinyClient:
    """A raw connection, so that the figures include no client start, and hardly any processor time of a client."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(120)

    def close(self) -> None:
        self.socket.close()

    def _ask(self, key: int, version: int, body: bytes) -> bytes:
        self._send(key, version, body)
        return self._receive()

    def _send(self, key: int, version: int, body: bytes) -> None:
        frame = struct.pack(">hhih", key, version, 1, 4) + b"tiny" + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def _receive(self) -> bytes:
        size = struct.unpack(">i", self._read(4))[0]
        return self._read(size)[4:]

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self.socket.recv_into(view)
            if not got:
                raise ConnectionError("closed")
            view = view[got:]
        return bytes(data)

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Send CreateTopics version 2."""
        body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihii", partitions, 1, 0, len(configs))
        body += b"".join(_string(name) + _string(value) for name, value in configs.items())
        answer = self._ask(19, 2, body + struct.pack(">i?", 60_000, False))
        (code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic))
        if code:
            raise SystemExit(f"{topic} was not created: error {code}")

    def delete_topic(self, topic: str) -> None:
        """Send DeleteTopics version 1."""
        self._ask(20, 1, struct.pack(">i", 1) + _string(topic) + struct.pack(">i", 60_000))

    def alter(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        """Alter configs of a topic (type 2) or of all brokers (type 4, name ""); an empty value deletes a config."""
        body = struct.pack(">ib", 1, kind) + _string(name) + struct.pack(">i", len(configs))
        for key, value in configs.items():
            body += _string(key) + (b"\0" + _string(value) if value else b"\1\xff\xff")
        answer = self._ask(44, 0, body + b"\0")
        (code,) = struct.unpack_from(">h", answer, 4 + 4)
        if code:
            raise SystemExit(f"{configs} of {name!r} were not altered: error {code}")

    def touch(self, topic: str) -> None:
        """Metadata v4 with auto-creation."""
        raw = topic.encode()
        self._ask(3, 4, struct.pack(">ih", 1, len(raw)) + raw + b"\1")

    def produce(self, topic: str, partition: int = 0) -> int:
        """Produce v3, acks=all, one record of 100 bytes; returns the partition's error code."""
        record = b"\0\0\0\1" + _varint(100) + bytes(100) + b"\0"
        record = _varint(len(record)) + record
        now = int(time.time() * 1000)
        tail = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + record
        batch = struct.pack(">qiiBI", 0, len(tail) + 9, -1, 2, crc32c.crc32c(tail)) + tail
        self._send(0, 3, _produce_body(topic, partition, batch))
        return self._produced(topic)

    def produce_batches(self, topic: str, batches: Iterable[bytes], in_flight: int) -> None:
        """Produce batches to partition 0, with so many requests in flight. Raises SystemExit."""
        unanswered = 0
        for batch in batches:
            self._send(0, 3, _produce_body(topic, 0, batch))
            unanswered += 1
            while unanswered >= in_flight:
                self._check_produced(topic)
                unanswered -= 1
        for _ in range(unanswered):
            self._check_produced(topic)

    def _check_produced(self, topic: str) -> None:
        code = self._produced(topic)
        if code:
            raise SystemExit(f"{topic}: error {code}")

    def _produced(self, topic: str) -> int:
        code: int = struct.unpack_from(">h", self._receive(), 4 + 2 + len(topic.encode()) + 4 + 4)[0]
        return code

    def latest(self, topic: str) -> int:
        """Return the high watermark of partition 0 (ListOffsets v1)."""
        raw = topic.encode()
        body = struct.pack(">iih", -1, 1, len(raw)) + raw + struct.pack(">iiq", 1, 0, -1)
        code, _, offset = struct.unpack_from(">hqq", self._ask(2, 1, body), 4 + 2 + len(raw) + 4 + 4)
        if code:
            raise SystemExit(f"{topic}: error {code}")
        return int(offset)

    def fetch(self, topic: str, offset: int, max_bytes: int = 1 << 20) -> int:
        """Fetch v4 of partition 0 from `offset`; returns the offset after the last record, or `offset` at the end."""
        raw = topic.encode()
        body = struct.pack(">iiiibih", -1, 100, 1, max_bytes, 0, 1, len(raw)) + raw
        body += struct.pack(">iiqi", 1, 0, offset, max_bytes)
        answer = self._ask(1, 4, body)
        pos = 4 + 4 + 2 + len(raw) + 4 + 4 + 2 + 8 + 8 + 4
        size = struct.unpack_from(">i", answer, pos)[0]
        pos += 4
        end = pos + size
        while end - pos >= 61:
            base, length, delta = struct.unpack_from(">qi11xi", answer, pos)
            offset = base + delta + 1
            pos += length + 12
        return offset


def _produce_body(topic: str, partition: int, batch: bytes) -> bytes:
    raw = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 10000, 1, len(raw)) + raw
    return body + struct.pack(">iii", 1, partition, len(batch)) + batch


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _varint(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def first_acknowledged(peer: Peer, topic: str, deadline_s: float = 300) -> float:
    """Start the server; return the seconds until the first acknowledged record."""
    begin = time.perf_counter()
    peer.start()
    while time.perf_counter() - begin < deadline_s:
        try:
            tiny = TinyClient(peer.port)
            try:
                while tiny.produce(topic) != 0:
                    tiny.touch(topic)
                    time.sleep(0.002)
                return time.perf_counter() - begin
            finally:
                tiny.close()
        except OSError:
            time.sleep(0.005)
    raise SystemExit(f"{peer.name} acknowledged nothing in {deadline_s} s")
