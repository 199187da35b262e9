"""A Kafka Streams application, in the JVM of the tests, and the rights of its user."""

from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from tests.compat.kafka_tools.jvm import Jvm

SOURCE = "orders"


class Right(NamedTuple):
    """`name`: of the resource, or its beginning if `is_prefix`."""

    operation: str
    kind: str
    name: str
    is_prefix: bool = False

    def acl(self, user: str) -> AclBinding:
        pattern = ResourcePatternType.PREFIXED if self.is_prefix else ResourcePatternType.LITERAL
        operation = AclOperation[self.operation]
        # librdkafka calls the cluster a broker.
        kind = ResourceType.BROKER if self.kind == "cluster" else ResourceType[self.kind.upper()]
        return AclBinding(kind, self.name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


class _Failure:
    """The handler of exceptions that end the application."""

    def __init__(self, jvm: Jvm) -> None:
        self.text = ""
        handler = "org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler$StreamThreadExceptionResponse"
        self._end = jvm.java.Class.forName(handler).getEnumConstants()[1]

    def handle(self, exception: Any) -> Any:
        causes = []
        while exception is not None:
            causes.append(f"{exception.getClass().getSimpleName()}: {exception.getMessage()}")
            exception = exception.getCause()
        self.text = "\n".join(causes)
        return self._end

    class Java:
        implements = ("org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler",)


class StreamsApplication:
    """Counts the records of each key: with a repartition topic, a changelog, and exactly once."""

    def __init__(self, jvm: Jvm, application: str, output: str, directory: Path, settings: dict[str, Any]) -> None:
        java = jvm.java.org.apache.kafka
        builder, named = java.streams.StreamsBuilder(), java.streams.kstream
        counts = getattr(named.Materialized, "as")(java.streams.state.Stores.inMemoryKeyValueStore("counts"))
        serdes = java.common.serialization.Serdes
        grouped = builder.stream(SOURCE).repartition(getattr(named.Repartitioned, "as")("by-key")).groupByKey()
        grouped.count(counts).toStream().to(output, getattr(named.Produced, "with")(serdes.String(), serdes.Long()))
        string = "org.apache.kafka.common.serialization.Serdes$StringSerde"
        properties = jvm.java.java.util.Properties()
        for name, value in {
            "application.id": application,
            "state.dir": str(directory),
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": "50",
            "repartition.purge.interval.ms": "50",
            "default.key.serde": string,
            "default.value.serde": string,
            "consumer.auto.offset.reset": "earliest",
            **settings,
        }.items():
            properties.setProperty(name, value)
        self._failure = _Failure(jvm)
        self._streams = java.streams.KafkaStreams(builder.build(), properties)
        self._streams.setUncaughtExceptionHandler(self._failure)
        self._streams.start()

    @property
    def failure(self) -> str:
        """The exceptions that have ended it, from the outermost to the innermost; empty while it runs."""
        return self._failure.text

    def close(self) -> None:
        self._streams.close()


def rights_of(application: str, output: str) -> dict[str, Right]:
    """Return the rights that an application needs, each with its name."""
    own = ("CREATE", "READ", "WRITE", "DELETE")
    return {
        "READ the source": Right("READ", "topic", SOURCE),
        "WRITE the output": Right("WRITE", "topic", output),
        "READ the group": Right("READ", "group", application),
        "WRITE the transactional ids": Right("WRITE", "transactional_id", f"{application}-", True),
        **{f"{operation} its topics": Right(operation, "topic", f"{application}-", True) for operation in own},
    }
