"""`kbroker produce`: produce arguments, lines or JSON objects as records."""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any, BinaryIO

from kbroker.cli.common.client import client_settings, kafka_python_error_text, kafka_python_errors
from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, argument, option
from kbroker.cli.common.output import ProgressBar, print_note
from kbroker.cli.common.values import INT32, count_text
from kbroker.cli.records.formats import Header, ProducerRecord, parse_headers, record_from_json, record_from_line

MAX_IN_FLIGHT_BYTES = 32 << 20
CLOSE_TIMEOUT_S = 2


class DeliveryFailed(CliError):
    """A record that was sent earlier was not acknowledged."""


class Delivery:
    """A KafkaProducer with a bound on bytes in flight, which kafka-python itself does not have.

    Counts acknowledged records and stops at the first failure.
    """

    def __init__(self, topic: str, config: dict[str, Any]) -> None:
        from kafka import KafkaProducer

        from kbroker.retry.clients.kafka_python import producer_headers

        self._topic = topic
        self._headers = producer_headers
        self._changed = threading.Condition()
        self._in_flight_bytes = 0
        self._failure: str | None = None
        self.acknowledged = 0
        with kafka_python_errors():
            self._producer = KafkaProducer(**config)

    def __enter__(self) -> "Delivery":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._producer.close()
            return
        with suppress(Exception):  # the exception that ends the command is reported
            self._producer.close(timeout=CLOSE_TIMEOUT_S)
        # If close failed, the producer's finalizer would close again and print a traceback.
        self._producer._closed = True

    def send(self, record: ProducerRecord, number: int) -> None:
        """Send one record; blocks while too many bytes are in flight. `number` is for error messages."""
        if record.key is None and record.value is None:
            raise CliError("a record needs a key or a value")
        size = record.size()
        with self._changed:
            while self._in_flight_bytes > MAX_IN_FLIGHT_BYTES and self._failure is None:
                self._changed.wait()
            self._raise_failure()
            self._in_flight_bytes += size
        with kafka_python_errors():
            future = self._producer.send(
                self._topic,
                value=record.value,
                key=record.key,
                headers=self._headers(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
        future.add_both(self._on_completion, size, number)

    def _on_completion(self, size: int, number: int, result: object) -> None:
        # Called on the producer's thread.
        with self._changed:
            self._in_flight_bytes -= size
            if isinstance(result, BaseException):
                self._failure = self._failure or f"record {number}: {kafka_python_error_text(result)}"
            else:
                self.acknowledged += 1
            self._changed.notify()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise DeliveryFailed(f"{self._failure} ({count_text(self.acknowledged, 'record')} acknowledged)")

    def finish(self) -> None:
        """Wait until every record is acknowledged; raises DeliveryFailed for the first that failed."""
        with kafka_python_errors():
            self._producer.flush()
        with self._changed:
            while self._in_flight_bytes and self._failure is None:
                self._changed.wait()
            self._raise_failure()


MAX_REQUEST_BYTES = 64 << 20
METADATA_TIMEOUT_MS = 10_000
STDIN = 0


def produce(
    topic: Annotated[str, argument("TOPIC", complete=complete_topics)],
    values: Annotated[list[str] | None, argument("[VALUE...]", "Values of records; without any, read lines.")] = None,
    file: Annotated[str | None, option("--file -f FILE", "Read lines from this file, not from standard input.")] = None,
    as_json: Annotated[
        bool, option("--json", "Read each line as an object with key, value, headers, partition, timestamp.")
    ] = False,
    key: Annotated[str | None, option("--key -k KEY", "Key of records without one.")] = None,
    key_separator: Annotated[str | None, option("--key-separator -K SEP", "Read each line as KEY SEP VALUE.")] = None,
    header: Annotated[
        list[str] | None, option("--header -H NAME=VALUE", "Add a header to every record; repeatable.")
    ] = None,
    partition: Annotated[
        int | None,
        option("--partition -p PARTITION", "Partition of records without one.", max=INT32, show_default="by key"),
    ] = None,
    acks: Annotated[str, option("0|1|all", "Acknowledgements to wait for.")] = "all",
    compression: Annotated[str | None, option("--compression -z CODEC", "gzip, snappy, lz4, zstd or none.")] = None,
    quiet: Annotated[bool, option("--quiet -q", "Do not print the number of records.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Produce records to a topic, from arguments or from lines of a file or standard input.

    --json reads what `kbroker consume --json` prints. Only --json can express a null value (a tombstone).

    Example: echo 'k1:v1' | kbroker produce orders --key-separator :
    """
    if as_json and (key_separator is not None or values):
        raise usage_error("--json reads complete records: it excludes --key-separator and VALUE arguments")
    if values and file is not None:
        raise usage_error("use VALUE arguments or --file, not both")
    if key_separator == "":
        raise usage_error("--key-separator is empty")
    # A shell passes \t as two characters.
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode(errors="surrogateescape")
    headers = parse_headers(header or [])

    parse = record_from_json if as_json else partial(record_from_line, separator=separator)
    lines = (
        (value.encode(errors="surrogateescape") for value in values)
        if values
        else _read_lines(_open(file), interactive=file is None and os.isatty(STDIN))
    )
    with Delivery(topic, producer_settings(bootstrap, acks, compression)) as delivery:
        for number, line in enumerate(lines, 1):
            with _record_number_in_errors(number):
                delivery.send(_with_defaults(parse(line), key, headers, partition), number)
        delivery.finish()
    if not quiet:
        print_note(f"produced {count_text(delivery.acknowledged, 'record')} to {topic}")


@contextmanager
def _record_number_in_errors(number: int) -> Iterator[None]:
    try:
        yield
    except DeliveryFailed:
        raise  # it names the record that failed, an earlier one
    except CliError as error:
        raise CliError(f"record {number}: {error}") from None


def producer_settings(bootstrap: str, acks: str, compression: str | None) -> dict[str, Any]:
    """Return settings for KafkaProducer, idempotent if acks allows it."""
    acks_settings = {"0": 0, "1": 1, "all": "all", "-1": "all"}
    if acks not in acks_settings:
        raise usage_error(f"--acks must be 0, 1 or all, not {acks!r}")
    if compression not in (None, "none", "gzip", "snappy", "lz4", "zstd"):
        raise usage_error(f"--compression must be gzip, snappy, lz4, zstd or none, not {compression!r}")
    return client_settings(bootstrap) | {
        "acks": acks_settings[acks],
        "enable_idempotence": acks_settings[acks] == "all",
        "compression_type": None if compression == "none" else compression,
        "linger_ms": 5,
        "batch_size": 256 << 10,
        # The broker limits record sizes (max.message.bytes), not the client.
        "max_request_size": MAX_REQUEST_BYTES,
        "max_block_ms": METADATA_TIMEOUT_MS,
        "metrics_enabled": False,
    }


def _with_defaults(
    record: ProducerRecord, key: str | None, headers: list[Header], partition: int | None
) -> ProducerRecord:
    if key is not None and record.key is None:
        record = record._replace(key=key.encode(errors="surrogateescape"))
    if partition is not None and record.partition is None:
        record = record._replace(partition=partition)
    return record._replace(headers=record.headers + headers) if headers else record


def _open(path: str | None) -> BinaryIO:
    try:
        return open(path, "rb") if path is not None else open(STDIN, "rb", closefd=False)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None


def _read_lines(source: BinaryIO, interactive: bool) -> Iterator[bytes]:
    """Yield lines without their line ends; an empty line is a record with an empty value."""
    if interactive:
        print_note("enter one record per line; end with Ctrl-D")
    status = os.fstat(source.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    with source, ProgressBar("producing", size, shows_bytes=True, enabled=not interactive) as progress:
        try:
            for line in source:
                yield line.removesuffix(b"\n").removesuffix(b"\r")
                progress.advance(len(line))
        except OSError as error:
            raise CliError(f"cannot read: {error.strerror}") from None
