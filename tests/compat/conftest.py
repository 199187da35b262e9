"""Fixtures of the compatibility tests, and the matrix of clients and features that they print.

The tests run against the broker at `KBROKER_COMPAT_BOOTSTRAP` (host:port), or else against a kbroker that they start.
Tests that kill a broker or read its files start one of their own (fixture `broker`), and are skipped when
`KBROKER_COMPAT_BOOTSTRAP` is set.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.matrix import CLIENTS, FAILED, NOT_RUN, PASSED, Cell
from tests.compat.reports import reports
from tests.compat.spark.session import new_session
from tests.compat.support import EXTERNAL_BOOTSTRAP, BrokerProcess, need_own_broker, running_broker, unique

HERE = Path(__file__).parent

_CELL = pytest.StashKey[Cell]()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the broker under test. All tests share it, so they use unique names."""
    if EXTERNAL_BOOTSTRAP:
        yield EXTERNAL_BOOTSTRAP
        return
    with running_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap
        broker.stop()


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """One JVM for all tests of Kafka's tools and Java clients."""
    if not (shutil.which("java") and shutil.which("mvn")):
        pytest.skip("not run: Kafka's tools need Java 17 or newer, and Maven to fetch them")
    log: Path = tmp_path_factory.mktemp("jvm") / "log"
    jvm = Jvm(log)
    yield jvm
    jvm.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session with two threads for all tests."""
    pytest.importorskip("pyspark.sql", reason="not run: pyspark is not installed (extra `spark`)")
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _plain_java_errors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo a patch of PySpark, which converts the errors of every JVM after the first Spark session in a process."""
    if "jvm" in request.fixturenames:
        from py4j import java_gateway, protocol

        monkeypatch.setattr(java_gateway, "get_return_value", protocol.get_return_value)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker for one test, which may kill it, restart it and read its files."""
    need_own_broker()
    with running_broker(tmp_path) as own:
        yield own


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A unique name for the test's topic."""
    return unique(request.node.originalname.removeprefix("test_"))


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A unique name for the test's consumer group."""
    return unique("group-" + request.node.originalname.removeprefix("test_"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "feature(title): the row of the matrix that a test belongs to")
    config.addinivalue_line("markers", "client(folder): the column, where it is not the test's folder")


def pytest_itemcollected(item: pytest.Item) -> None:
    if not item.path.is_relative_to(HERE):
        return
    feature = item.get_closest_marker("feature")
    client = item.get_closest_marker("client")
    folder = item.path.relative_to(HERE).parts[0]
    if folder in ("zookeeper", "cluster", "local_cluster", "soak", "console"):
        return  # no client of kbroker; several clients at the same time
    if feature is None and folder != "cli":
        raise pytest.UsageError(f"{item.nodeid}: has no pytest.mark.feature, which is its row of the matrix")
    column = client.args[0] if client else folder
    if column not in CLIENTS:
        raise pytest.UsageError(f"{item.nodeid}: {column} is not a client of the matrix")
    item.stash[_CELL] = (column, feature.args[0] if feature else "command line")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if _CELL in item.stash and (report.when != "teardown" or report.failed):
        outcome = PASSED if report.passed else NOT_RUN if report.skipped else FAILED
        if report.when == "call" or outcome != PASSED:
            reports(item.config).matrix.record(item.nodeid, item.stash[_CELL], outcome)
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reports", type=Path, metavar="FILE", help="write the reports to a file instead of the terminal")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report = reports(config)
    title = f"clients and features, tested against {EXTERNAL_BOOTSTRAP or 'a new kbroker'}"
    sections = {title: lines for title, lines in {**report.sections, title: report.matrix.lines()}.items() if lines}
    if file := config.getoption("reports"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "".join(f"== {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections.items())
        )
        return
    for title, lines in sections.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["reports"] = reports(session.config).serialized()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Called when a worker of pytest-xdist has ended. A worker that crashed has no output."""
    reports(node.config).add(getattr(node, "workeroutput", {}).get("reports", {"outcomes": [], "sections": {}}))
