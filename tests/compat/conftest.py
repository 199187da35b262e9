"""Fixtures of the compatibility suite, and the matrix that it prints.

The suite runs against the broker that `KBROKER_COMPAT_BOOTSTRAP` names (host:port), or else starts a
kbroker of its own. Tests that kill a broker or read its files always need one of their own (fixture
`broker`); they are not run when the suite is pointed at somebody else's.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.matrix import CLIENTS, FAILED, NOT_RUN, PASSED, Cell
from tests.compat.reports import reports
from tests.compat.support import OUTSIDE, BrokerProcess, need_own_broker, running_broker, unique

HERE = Path(__file__).parent

_CELL = pytest.StashKey[Cell]()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the broker under test. All tests share it, so their names must be unique."""
    if OUTSIDE:
        yield OUTSIDE
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
    machine = Jvm(log)
    yield machine
    machine.close()


@pytest.fixture(autouse=True)
def _java_errors_as_they_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark makes errors of its own of those of every JVM, once there was a session in the process."""
    if "jvm" in request.fixturenames:
        from py4j import java_gateway, protocol

        monkeypatch.setattr(java_gateway, "get_return_value", protocol.get_return_value)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test alone, which it may kill, restart and look into."""
    need_own_broker()
    with running_broker(tmp_path) as own:
        yield own


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic, never used before."""
    return unique(request.node.originalname.removeprefix("test_"))


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A name for this test's consumer group, never used before."""
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
    if feature is None and folder != "cli":
        raise pytest.UsageError(f"{item.nodeid}: no pytest.mark.feature, so it has no place in the matrix")
    column = client.args[0] if client else folder
    if column not in CLIENTS:
        raise pytest.UsageError(f"{item.nodeid}: {column} is no client of the matrix")
    item.stash[_CELL] = (column, feature.args[0] if feature else "command line")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if _CELL in item.stash and (report.when != "teardown" or report.failed):
        outcome = PASSED if report.passed else NOT_RUN if report.skipped else FAILED
        if report.when == "call" or outcome != PASSED:
            reports(item.config).matrix.record(item.nodeid, item.stash[_CELL], outcome)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = reports(config)
    title = f"clients and features, against {OUTSIDE or 'a kbroker of its own'}"
    for section, lines in {**found.sections, title: found.matrix.lines()}.items():
        if lines:
            terminalreporter.section(section)
        for line in lines:
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["reports"] = reports(session.config).packed()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """pytest-xdist: a worker has ended; one that crashed has left nothing."""
    reports(node.config).add(getattr(node, "workeroutput", {}).get("reports", {"outcomes": [], "sections": {}}))
