"""Deliberate mistakes with records, configs, files and starts: one line that says what to do, and the exit status.

Those with topics, groups and clusters are in lists/test_mistakes.py.
"""

import gc
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli import main
from kbroker.testing import Broker

FAILURE, USAGE = 1, 2
FILES = {
    "second-line.json": b'{"value": "v"}\n{\n',
    "empty-record.json": b"{}\n",
    "surrogate.json": b'{"value": "\\ud800"}\n',
    "lines": b"a\nb\n",
    "bad.toml": b"log.retention.ms = \n",
    "unit.properties": b"# comment\nlog.segment.bytes=5d\n",
}

# Command line, exit status, and words of the line. DIR is a directory with the files, T a topic.
MISTAKES = [
    # produce
    ("produce", USAGE, "Missing argument 'TOPIC'. (see kbroker produce --help)"),
    ("produce T v --jsn", USAGE, "No such option: --jsn"),
    ("produce T v --file x", USAGE, "use VALUE arguments or --file, not both"),
    ("produce T v --json", USAGE, "--json reads complete records"),
    ("produce T --json -K :", USAGE, "it excludes --key-separator"),
    ("produce T -K ''", USAGE, "--key-separator is empty"),
    ("produce T v --acks two", USAGE, "--acks must be 0, 1 or all, not 'two'"),
    ("produce T v -z rar", USAGE, "--compression must be gzip, snappy, lz4, zstd or none, not 'rar'"),
    ("produce T v -p -1", USAGE, "-1 is not in the range"),
    ("produce T v -p one", USAGE, "Invalid value for '--partition' / '-p'"),
    ("produce T v -p 7", FAILURE, "record 1: topic t has no partition 7: it has 1"),
    ("produce T v -H novalue", USAGE, "expected a header as NAME=VALUE, not 'novalue'"),
    ("produce T --file /nowhere/x", FAILURE, "cannot read /nowhere/x: No such file or directory"),
    ("produce T --file DIR", FAILURE, "Is a directory"),
    ("produce T --file DIR/second-line.json --json", FAILURE, "record 2: not valid JSON"),
    ("produce T --file DIR/lines -K ';'", FAILURE, "record 1: no key separator ';'"),
    ("produce T --file DIR/empty-record.json --json", FAILURE, "record 1: a record needs a key or a value"),
    ("produce T --file DIR/surrogate.json --json", FAILURE, "record 1: value has half of a surrogate pair"),
    ("produce bad/name v", FAILURE, "the name of a topic has 1 to 249 letters, digits"),
    ("produce T v -b localhost:http", USAGE, "--bootstrap must be HOST:PORT, not 'localhost:http'"),
    ("produce T v -b ::1:9092", USAGE, "an IPv6 address needs brackets, as in [::1]:9092"),
    ("produce T v -b nobody.invalid", FAILURE, "cannot connect to nobody.invalid:9092"),
    ("produce T v -b 127.0.0.1:1", FAILURE, "Connection refused (start a broker with: kbroker start)"),
    ("produce T v --command-config /nowhere/c", FAILURE, "/nowhere/c: No such file or directory"),
    ("produce T v --tls-ca /nowhere/ca.pem", FAILURE, "cannot load /nowhere/ca.pem: No such file or directory"),
    # consume
    ("consume", USAGE, "Missing argument 'TOPIC...'"),
    ("consume missing", FAILURE, "topic missing does not exist"),
    ("consume T missing", FAILURE, "topic missing does not exist"),
    ("consume T -p 9", FAILURE, "topic t has no partition 9: it has 1"),
    ("consume T -n ten", USAGE, "'ten' is not a whole number"),
    ("consume T --from @2026-13-01", USAGE, "expected a time such as 2026-01-31T12:00"),
    ("consume T --from -x", USAGE, "the number of last records must be a whole number, not 'x'"),
    ("consume T --to soon", USAGE, "expected earliest, latest, an offset, -N or @TIME, not 'soon'"),
    ("consume T -g g -p 0", USAGE, "--group reads from committed offsets: it excludes --partition"),
    ("consume T -g ''", FAILURE, "(INVALID_GROUP_ID)"),
    ("consume T --grep '('", USAGE, "--grep: missing ), unterminated subpattern at position 0, in '('"),
    ("consume T --grep '*'", USAGE, "--grep: nothing to repeat"),
    ("consume T --header h", USAGE, "expected a header as NAME=VALUE, not 'h'"),
    ("consume T --format %q", USAGE, "--format: '%q' is none of %t %p %o"),
    ("consume T --json --format %s", USAGE, "choose one: --json, --format, --key-separator or --values"),
    ("consume T --json --values", USAGE, "choose one: --json"),
    ("consume bad/name", FAILURE, "the name of a topic has 1 to 249 letters"),
    ("consume T --follow=yes", USAGE, "'--follow' does not take a value"),
    # bench
    ("bench produse", USAGE, "No such command 'produse'. Did you mean 'produce'?"),
    ("bench produce missing -n 1", FAILURE, "topic missing does not exist"),
    ("bench consume missing", FAILURE, "topic missing does not exist"),
    ("bench produce -n 0", USAGE, "0 is not in the range x>=1"),
    ("bench produce --size big", USAGE, "expected a size such as 128MiB or 1GiB, not 'big'"),
    ("bench produce --size 0", USAGE, "--size must be between 1 byte and 100.0 MiB"),
    ("bench produce --batch-size 5d", USAGE, "expected a size"),
    ("bench produce --linger 5", USAGE, "expected a duration such as 90s"),
    ("bench produce --rate 0", USAGE, "0 is not in the range 1<=x"),
    ("bench produce --acks 9", USAGE, "--acks must be 0, 1 or all"),
    ("bench produce -n 1 --size 2MiB", FAILURE, "max.message.bytes is 1048588 (MESSAGE_TOO_LARGE)"),
    ("bench produce -n 1 -p 100000000", FAILURE, "Excessively large number of partitions"),
    # configs
    ("configs get", USAGE, "Missing argument 'KIND'"),
    ("configs get topic missing", FAILURE, "topic missing does not exist"),
    ("configs get topic T retention", FAILURE, "has no config retention (did you mean retention.ms?)"),
    ("configs set topic T retention.ms=", FAILURE, "retention.ms: Not a number of type LONG"),
    ("configs set topic T retention.ms=forever", FAILURE, "Invalid value forever for configuration retention.ms"),
    ("configs set topic T retention.ms=5MiB", USAGE, "retention.ms is a time in milliseconds"),
    ("configs set topic T segment.bytes=5d", USAGE, "segment.bytes is a size in bytes"),
    ("configs set topic T segment.bytes=1kB", FAILURE, "Value must be at least 1048576"),
    ("configs set topic T retentoin.ms=5", FAILURE, "retentoin.ms (did you mean retention.ms?)"),
    ("configs set topic T log.retention.ms=5d", FAILURE, "log.retention.ms (did you mean retention.ms?)"),
    ("configs set topic T cleanup.policy=shred", FAILURE, "String must be one of: compact, delete"),
    ("configs set topic T --append retention.ms=5", FAILURE, "its type is not LIST"),
    ("configs set broker one log.retention.ms=5", USAGE, "the name of a broker is a broker id, not 'one'"),
    ("configs set broker 77 log.retention.ms=5", FAILURE, "there is no broker 77"),
    ("configs set broker --default log.retention=5d", FAILURE, "(did you mean log.retention.ms?)"),
    ("configs set broker --default log.dirs=x", FAILURE, "Cannot update these configs dynamically: [log.dirs]"),
    ("configs set topic --default retention.ms=5", USAGE, "--default applies to broker, not to topic"),
    ("configs set group g consumer.session.timeout.ms=1ms", FAILURE, "must be in the range 45000 to 60000"),
    ("configs unset topic missing --all", FAILURE, "topic missing does not exist"),
    ("config show --config /nowhere.toml", FAILURE, "cannot read /nowhere.toml: No such file or directory"),
    ("config show --set log.retention.ms=5MiB", FAILURE, "a time in milliseconds"),
    ("topics create u -c retention.ms=5MiB", USAGE, "a time in milliseconds"),
    # start
    ("start --config DIR/bad.toml", FAILURE, "bad.toml is not valid TOML"),
    ("start --config DIR/unit.properties", FAILURE, "unit.properties:2)"),
    ("start --set log.retention.hours=90m", FAILURE, "is a time in hours: expected a whole number or, for example, 7d"),
    ("start --set log.retention.msx=5", FAILURE, "log.retention.msx (did you mean log.retention.ms?) (from --set)"),
    ("start --set num.partitions", USAGE, "expected NAME=VALUE, not 'num.partitions'"),
    ("start --listen 9092", USAGE, "--listen must be HOST:PORT, not '9092'"),
    ("start --listen 0.0.0.0:0", FAILURE, "(see --advertise HOST:PORT)"),
    ("start --metrics 99999", USAGE, "--metrics must be HOST:PORT"),
    ("start --brokers many", USAGE, "Invalid value for '--brokers'"),
    ("start --brokers 0", USAGE, "--brokers must be from 1 to 100"),
    ("start --log-level loud", USAGE, "--log-level must be one of debug, info, warning, error"),
    ("start --log-format xml", FAILURE, "String must be one of: text, json (from --log-format)"),
    ("start --add-scram bob", FAILURE, "SCRAM-SHA-256=[name=NAME,password=PASSWORD]"),
    # log
    ("log dump", USAGE, "Missing argument 'PATH...'"),
    ("log dump /nowhere", FAILURE, "/nowhere: No such file or directory"),
    ("log dump DIR/lines", FAILURE, "not the name of a file of a data directory"),
    ("log dump DIR --offsets x", USAGE, "the first offset must be a whole number, not 'x'"),
    ("log dump DIR --max 0", USAGE, "0 is not in the range x>=1"),
    ("log verify /nowhere", FAILURE, "/nowhere: no such directory"),
    ("log verifi DIR", USAGE, "No such command 'verifi'. Did you mean 'verify'?"),
    # dlq and delayed
    ("dlq show missing", FAILURE, "topic missing does not exist"),
    ("dlq redrive T", FAILURE, "t is not a dead-letter topic: errors.deadletterqueue.group.enable is not true"),
    ("dlq purge T --all", FAILURE, "t is not a dead-letter topic"),
    ("dlq purge T", USAGE, "choose one: --until TIME, --offset OFFSET or --all"),
    ("dlq purge T --offset 5", USAGE, "--offset needs --partition"),
    ("dlq show T --from yesterday", USAGE, "expected a time such as"),
    ("dlq show T -H =", USAGE, "--header needs the name of a header"),
    ("dlq redrive T --rate 0", USAGE, "0 is not in the range"),
    ("delayed list T", FAILURE, "Topic 't' has no delayed delivery: kbroker.delay.enable is not true"),
    ("delayed list missing", FAILURE, "topic missing does not exist"),
    ("delayed list T -p 9", FAILURE, "topic t has no partition 9: it has 1"),
    ("delayed cancel T", USAGE, "choose one: --offset OFFSET with --partition, or --key KEY"),
    ("delayed cancel T --offset 5", USAGE, "--offset needs --partition"),
    # replay
    ("replay", USAGE, "Missing argument 'DIR'"),
    ("replay DIR", USAGE, "name at least one TOPIC to replay"),
    ("replay DIR T --rate 1 --speed 1", USAGE, "--rate and --speed exclude each other"),
    ("replay DIR T --rate -1", USAGE, "--rate must be a positive number, not -1"),
    ("replay DIR T --to a --prefix b", USAGE, "--to and --prefix exclude each other"),
    ("replay DIR T --from 2026-02-01 --until 2026-01-01", USAGE, "--from must be before --until"),
    ("replay DIR T --offsets 5", USAGE, "an offset range must be PARTITION:START-END, not '5'"),
    ("replay DIR T --resume ID", USAGE, "excludes TOPIC"),
    ("replay DIR T --broker-wait long", USAGE, "expected a duration"),
    ("replay DIR T --config retention.ms=5MiB", USAGE, "a time in milliseconds"),
]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        broker.topic("t", partitions=1)
        yield broker.bootstrap


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mistakes")
    for name, data in FILES.items():
        (directory / name).write_bytes(data)
    return directory


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch, bootstrap: str, tmp_path: Path) -> Iterator[None]:
    """Restores what commands change in their process; `start` has its data, if any, in a directory of the test."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", bootstrap)
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    thresholds = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*thresholds)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_there_are_more_than_a_hundred() -> None:
    assert len({command for command, _, _ in MISTAKES}) == len(MISTAKES) > 100


@pytest.mark.parametrize(("command", "status", "words"), MISTAKES, ids=[command for command, _, _ in MISTAKES])
def test_a_mistake_is_one_line(
    command: str, status: int, words: str, directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args = [word.replace("DIR", str(directory)) if word != "T" else "t" for word in shlex.split(command)]
    capfd.readouterr()
    assert main(args) == status
    out, err = capfd.readouterr()
    # The broker of the test logs what it refuses to the same standard error.
    lines = [line for line in err.splitlines() if not line.startswith("request refused")]
    assert out == ""
    assert len(lines) == 1
    assert lines[0].startswith('{"error": ' if "--json" in args and "produce" not in args else "kbroker: ")
    assert words in lines[0]
