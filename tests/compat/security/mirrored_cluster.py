"""MirrorMaker 2 and a Connect worker, each with a user of its own, on brokers with SASL_SSL and ACLs."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.compat.java_programs import QUICK_JVM
from tests.compat.mirror.mirror_maker import LOGGING, PROMPT, PROMPT_WORKER, MirrorMaker, mirror_classpath
from tests.compat.mirror.world import INTERNAL
from tests.compat.security.streams_application import Right
from tests.compat.support import DEADLINE_S
from tests.compat.transactions.java_client import jar

SOURCE, TARGET = "here", "there"
MIRRORED, GROUP = "invoices", "billing"
REMOTE = f"{SOURCE}.{MIRRORED}"
CLUSTER = "kafka-cluster"


def rights(text: str) -> list[Right]:
    """Return the rights in a table: operations, the kind of the resource, and its name, or its beginning and `*`."""
    return [
        Right(operation, kind, name.removesuffix("*"), name.endswith("*"))
        for operations, kind, name in map(str.split, text.strip().splitlines())
        for operation in operations.split(",")
    ]


# The offset syncs are in the source cluster, and the topics of the Connect workers in the target cluster.
AT_SOURCE = rights(f"""
    READ,DESCRIBE_CONFIGS topic {MIRRORED}
    CREATE,READ,WRITE topic mm2-*
    DESCRIBE group {GROUP}
    DESCRIBE cluster {CLUSTER}
""")
AT_TARGET = rights(f"""
    CREATE,READ,WRITE,ALTER,ALTER_CONFIGS,DESCRIBE_CONFIGS topic {SOURCE}.*
    CREATE,READ,WRITE,DESCRIBE_CONFIGS topic mm2-*
    CREATE topic heartbeats
    READ group {SOURCE}-mm2
    READ group {GROUP}
    ALTER cluster {CLUSTER}
""")


def mirror_maker(directory: Path, source: Mapping[str, str], target: Mapping[str, str]) -> MirrorMaker:
    """`source`, `target`: the settings of clients of the two clusters."""
    flow = f"{SOURCE}->{TARGET}"
    properties = {
        "clusters": f"{SOURCE}, {TARGET}",
        **{f"{SOURCE}.{name}": value for name, value in source.items()},
        **{f"{TARGET}.{name}": value for name, value in {**target, **PROMPT_WORKER}.items()},
        f"{flow}.enabled": "true",
        f"{flow}.topics": MIRRORED,
        f"{flow}.groups": GROUP,
        f"{TARGET}->{SOURCE}.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "sync.group.offsets.enabled": "true",
        "replication.factor": "1",
        **{f"{topic}.replication.factor": "1" for topic in (*INTERNAL, "config.storage")},
        **PROMPT,
    }
    return MirrorMaker(directory, properties)


LINES = "lines"
# Of a source that reads a file, and a sink that writes one, whose group has its name.
OF_WORKER = rights(f"""
    READ,WRITE topic {LINES}
    READ group connect-sink
""")


class ConnectWorker:
    """A standalone worker with a connector from a file to a topic, and one from the topic to another file."""

    def __init__(self, directory: Path, client: Mapping[str, str], lines: list[str]) -> None:
        self._sink = directory / "sink.txt"
        (directory / "source.txt").write_text("".join(f"{line}\n" for line in lines))
        package = "org.apache.kafka.connect"
        converters = {f"{part}.converter": f"{package}.storage.StringConverter" for part in ("key", "value")}
        storage = {"offset.storage.file.filename": str(directory / "offsets"), "offset.flush.interval.ms": "500"}
        clients = {
            f"{prefix}{name}": value for prefix in ("", "producer.", "consumer.") for name, value in client.items()
        }
        worker = {
            "listeners": "http://127.0.0.1:0",
            "plugin.discovery": "service_load",
            **converters,
            **storage,
            **clients,
        }
        source = {"name": "source", "connector.class": f"{package}.file.FileStreamSourceConnector", "topic": LINES}
        sink = {"name": "sink", "connector.class": f"{package}.file.FileStreamSinkConnector", "topics": LINES}
        files = {
            "worker": worker,
            "source": source | {"file": str(directory / "source.txt")},
            "sink": sink | {"file": str(self._sink), "consumer.override.auto.offset.reset": "earliest"},
        }
        for name, settings in files.items():
            text = "".join(f"{key}={value}\n" for key, value in settings.items())
            (directory / f"{name}.properties").write_text(text)
        classpath = f"{mirror_classpath()}:{jar('connect-file', '4.3.1')}"
        command = ["java", "-Xmx256m", *QUICK_JVM, *LOGGING, "-cp", classpath, f"{package}.cli.ConnectStandalone"]
        self._log = directory / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *(str(directory / f"{name}.properties") for name in files)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def written(self) -> list[str]:
        """Return the lines that the sink has written."""
        return self._sink.read_text().splitlines() if self._sink.exists() else []

    def log(self) -> str:
        """Return its log. Fails if it has ended."""
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        return self._log.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
