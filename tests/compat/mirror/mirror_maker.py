"""MirrorMaker 2 as a dedicated process, which a test kills and restarts, and the Apache Kafka server beside it."""

import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from scripts.benchmark.peers import CACHE, Kafka, downloaded_classpath, java
from tests.compat.java_programs import QUICK_JVM, kafka_jvm
from tests.compat.support import DEADLINE_S

# Its version 4.4.0 is not published.
POM, JARS = Path(__file__).with_name("mirror-maker-pom.xml"), CACHE.parent / "mirror-maker-4.3.1"
MAIN_CLASS = "org.apache.kafka.connect.mirror.MirrorMaker"
# slf4j-simple writes warnings, and what MirrorMaker itself does.
LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.connect.mirror=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
# All configs that make MirrorMaker wait, with their shortest values. Its defaults are minutes.
PROMPT = {
    "offset.lag.max": "0",
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
    "consumer.poll.timeout.ms": "100",
    # Fewer partitions of the internal topics, each of which is read at the start.
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    # By default all classes of all jars are read, by each worker.
    "plugin.discovery": "service_load",
}
# The same for the Connect worker, whose configs belong to the target cluster.
PROMPT_WORKER = {"offset.flush.interval.ms": "500", "plugin.discovery": "service_load"}
# After a kill -9, a new worker waits for the session of the killed one. It takes about as long to start.
SHORT_SESSION = {"scheduled.rebalance.max.delay.ms": "0", "session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}


def mirror_classpath() -> str:
    """Return the classpath of MirrorMaker and its clients."""
    return downloaded_classpath(POM, JARS)


class QuickKafka(Kafka):
    """A single Apache Kafka node with few internal partitions, which starts as quickly as it can."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, heap="384m")

    def prepare(self) -> None:
        super().prepare()
        with (self.directory / "server.properties").open("a") as properties:
            properties.write(
                "offsets.topic.num.partitions=1\n"
                "transaction.state.log.num.partitions=1\n"
                "log.cleaner.backoff.ms=100\n"
                "log.initial.task.delay.ms=100\n"
            )

    def command(self) -> list[str]:
        heap = [f"-Xmx{self.heap}", *kafka_jvm()]
        return java("kafka.Kafka", str(self.directory / "server.properties"), options=heap)


class MirrorMaker:
    """A dedicated MirrorMaker 2, as connect-mirror-maker.sh starts it."""

    def __init__(self, directory: Path, properties: Mapping[str, str] | str) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        text = properties
        if not isinstance(text, str):
            text = "".join(f"{name} = {value}\n" for name, value in properties.items())
        (directory / "mm2.properties").write_text(text)

    def start(self) -> None:
        """Start it without waiting for it: it needs some seconds before it copies the first record."""
        self._starts += 1
        command = ["java", "-Xmx384m", *QUICK_JVM, *LOGGING, "-cp", mirror_classpath(), MAIN_CLASS]
        with self._log(self._starts).open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(self._directory / "mm2.properties")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill it (kill -9): nothing is flushed, and its members stay in their groups until their sessions expire."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM: it sends what it has read, and stores its offsets."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def log(self) -> str:
        """Return the log of all starts."""
        return "".join(self._log(start).read_text(errors="replace") for start in range(1, self._starts + 1))

    def refusals(self) -> list[str]:
        """Return the lines of the log that report a response with an error, or an operation that was not possible."""
        return re.findall(r"^.*(?:org\.apache\.kafka\.common\.errors\.\w+|Could not ).*$", self.log(), re.MULTILINE)

    def _log(self, start: int) -> Path:
        return self._directory / f"log-{start}"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=DEADLINE_S)
