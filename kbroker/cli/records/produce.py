"""`kbroker produce`: produce arguments, lines or JSON objects as records."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, BinaryIO

import typer

from kbroker.cli.common.client import client_settings
from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap
from kbroker.cli.common.output import print_note
from kbroker.cli.common.parsing import INT32
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.records.delivery import Delivery, DeliveryFailed
from kbroker.cli.records.formats import Header, ProducerRecord, parse_headers, record_from_json, record_from_line

MAX_REQUEST_BYTES = 64 << 20
METADATA_TIMEOUT_MS = 10_000
STDIN = 0


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics)],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE...]", show_default=False, help="Values of records; without any, read lines."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read lines from this file, not from standard input."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Read each line as an object with key, value, headers, partition, timestamp."),
    ] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="Key of records without one.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="SEP", help="Read each line as KEY SEP VALUE.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Add a header to every record; repeatable."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="PARTITION",
            min=0,
            max=INT32,
            help="Partition of records without one.",
            show_default="by key",
        ),
    ] = None,
    acks: Annotated[str, typer.Option(metavar="0|1|all", help="Acknowledgements to wait for.")] = "all",
    compression: Annotated[
        str | None, typer.Option("--compression", "-z", metavar="CODEC", help="gzip, snappy, lz4, zstd or none.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the number of records.")] = False,
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
    separator = _separator_bytes(key_separator)
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


def _separator_bytes(separator: str | None) -> bytes | None:
    # A shell passes \t as two characters.
    return None if separator is None else separator.replace("\\t", "\t").encode(errors="surrogateescape")


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
    with source, ProgressBar("producing", _file_size(source), shows_bytes=True, enabled=not interactive) as progress:
        try:
            for line in source:
                yield line.removesuffix(b"\n").removesuffix(b"\r")
                progress.advance(len(line))
        except OSError as error:
            raise CliError(f"cannot read: {error.strerror}") from None


def _file_size(source: BinaryIO) -> int | None:
    status = os.fstat(source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None
