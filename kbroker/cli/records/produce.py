"""`kbroker produce`: lines or JSON objects into a topic."""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any, BinaryIO

import typer

from kbroker.cli.common.client import client_error_text, client_errors, client_settings
from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap
from kbroker.cli.common.output import print_note
from kbroker.cli.common.parsing import INT32
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.records.formats import Draft, Header, from_json, from_line, headers_of

MAX_IN_FLIGHT_BYTES = 32 << 20
MAX_REQUEST_BYTES = 64 << 20
METADATA_TIMEOUT_MS = 10_000
GIVE_UP_AFTER_S = 2
STDIN = 0


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics)],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE", show_default=False, help="Records; without any: lines."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read lines from a file, not standard input."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Each line is an object with key, value, headers, partition, timestamp."),
    ] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="SEP", help="Lines are KEY SEP VALUE.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, max=INT32, help="The partition of every record.", show_default="by key"
        ),
    ] = None,
    acks: Annotated[str, typer.Option(metavar="0|1|all", help="What to wait for.")] = "all",
    compression: Annotated[
        str | None, typer.Option("--compression", "-z", metavar="CODEC", help="gzip, snappy, lz4 or zstd.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not say how many were produced.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Produce records: arguments, or lines from standard input or a file.

    With --json it reads what `kbroker consume --json` prints. A null value (a tombstone) can only be said so.
    """
    if as_json and (key_separator is not None or values):
        raise usage_error("--json describes whole records: it goes with neither --key-separator nor VALUE arguments")
    if values and file is not None:
        raise usage_error("give VALUE arguments or --file, not both")
    if key_separator == "":
        raise usage_error("--key-separator is empty")
    separator = _unescaped(key_separator)
    headers = headers_of(header or [])

    read = from_json if as_json else partial(from_line, separator=separator)
    lines = (
        (value.encode(errors="surrogateescape") for value in values)
        if values
        else _lines(_open(file), interactive=file is None and os.isatty(STDIN))
    )
    with Delivery(topic, settings(bootstrap, acks, compression)) as delivery:
        for number, line in enumerate(lines, 1):
            with _naming(number):
                delivery.send(_completed(read(line), key, headers, partition), number)
        delivery.finish()
    if not quiet:
        print_note(f"produced {count_text(delivery.acknowledged, 'record')} to {topic}")


@contextmanager
def _naming(number: int) -> Iterator[None]:
    try:
        yield
    except DeliveryFailed:
        raise
    except CliError as error:
        raise CliError(f"record {number}: {error}") from None


def settings(bootstrap: str, acks: str, compression: str | None) -> dict[str, Any]:
    """The producer's settings; idempotent wherever acks allows."""
    waits = {"0": 0, "1": 1, "all": "all", "-1": "all"}
    if acks not in waits:
        raise usage_error(f"--acks must be 0, 1 or all, not {acks!r}")
    if compression not in (None, "none", "gzip", "snappy", "lz4", "zstd"):
        raise usage_error(f"--compression must be gzip, snappy, lz4, zstd or none, not {compression!r}")
    return client_settings(bootstrap) | {
        "acks": waits[acks],
        "enable_idempotence": waits[acks] == "all",
        "compression_type": None if compression == "none" else compression,
        "linger_ms": 5,
        "batch_size": 256 << 10,
        # how large a record may be is the broker's to say (max.message.bytes)
        "max_request_size": MAX_REQUEST_BYTES,
        "max_block_ms": METADATA_TIMEOUT_MS,
        "metrics_enabled": False,
    }


def _unescaped(separator: str | None) -> bytes | None:
    """`\\t` as people write it in a shell."""
    return None if separator is None else separator.replace("\\t", "\t").encode(errors="surrogateescape")


def _completed(draft: Draft, key: str | None, headers: list[Header], partition: int | None) -> Draft:
    """What the options say of every record, where the record itself says nothing."""
    if key is not None and draft.key is None:
        draft = draft._replace(key=key.encode(errors="surrogateescape"))
    if partition is not None and draft.partition is None:
        draft = draft._replace(partition=partition)
    return draft._replace(headers=draft.headers + headers) if headers else draft


def _open(path: str | None) -> BinaryIO:
    try:
        return open(path, "rb") if path is not None else open(STDIN, "rb", closefd=False)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None


def _lines(source: BinaryIO, interactive: bool) -> Iterator[bytes]:
    """Each line is a record, without its end; an empty line is an empty record."""
    if interactive:
        print_note("one record a line; Ctrl-D ends")
    with source, ProgressBar("producing", _size(source), shows_bytes=True, enabled=not interactive) as work:
        try:
            for line in source:
                yield line.removesuffix(b"\n").removesuffix(b"\r")
                work.advance(len(line))
        except OSError as error:
            raise CliError(f"cannot read: {error.strerror}") from None


def _size(source: BinaryIO) -> int | None:
    status = os.fstat(source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class DeliveryFailed(CliError):
    """The broker, or the way to it, failed for a record that was handed over before."""


class Delivery:
    """A producer that bounds what is in flight, counts what is acknowledged, and stops at the first failure.

    kafka-python's producer itself takes any number of records into memory.
    """

    def __init__(self, topic: str, config: dict[str, Any]) -> None:
        from kafka import KafkaProducer

        self._topic = topic
        self._changed = threading.Condition()
        self._in_flight = 0
        self._failure: str | None = None
        self.acknowledged = 0
        with client_errors():
            self._producer = KafkaProducer(**config)

    def __enter__(self) -> "Delivery":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._producer.close()
            return
        with suppress(Exception):  # there is a failure to tell already
            self._producer.close(timeout=GIVE_UP_AFTER_S)
        # where that failed its finalizer would try again, with a traceback
        self._producer._closed = True

    def send(self, draft: Draft, number: int) -> None:
        """Hand over one record; `number` names it in a complaint. Waits while too much is in flight."""
        if draft.key is None and draft.value is None:
            raise CliError("a record needs a key or a value")
        size = draft.size()
        with self._changed:
            while self._in_flight > MAX_IN_FLIGHT_BYTES and self._failure is None:
                self._changed.wait()
            self._check()
            self._in_flight += size
        with client_errors():
            future = self._producer.send(
                self._topic,
                value=draft.value,
                key=draft.key,
                headers=[(name, value or b"") for name, value in draft.headers],
                partition=draft.partition,
                timestamp_ms=draft.timestamp,
            )
        future.add_both(self._settled, size, number)

    def _settled(self, size: int, number: int, outcome: object) -> None:
        # on the producer's thread
        with self._changed:
            self._in_flight -= size
            if isinstance(outcome, BaseException):
                self._failure = self._failure or f"record {number}: {client_error_text(outcome)}"
            else:
                self.acknowledged += 1
            self._changed.notify()

    def _check(self) -> None:
        if self._failure is not None:
            raise DeliveryFailed(f"{self._failure} ({count_text(self.acknowledged, 'record')} acknowledged)")

    def finish(self) -> None:
        """Returns when everything is acknowledged. Raises CliError for the first failure."""
        with client_errors():
            self._producer.flush()
        with self._changed:
            while self._in_flight and self._failure is None:
                self._changed.wait()
            self._check()
