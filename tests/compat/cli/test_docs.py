"""The commands of the documentation succeed, in the order of their pages, on a broker with default settings."""

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.compat.cli.conftest import COMMAND, Kbroker
from tests.compat.support import BrokerProcess, eventually, need_own_broker

ROOT = Path(__file__).parents[3]
# Commands that are not run here, for what they need or what ran before.
SKIPPED = re.compile(
    r"^(docker|export|curl|kcat|spark-shell|echo|\.)|pip install|kbroker (archive|replay) "
    r"|kbroker start --data-dir /var|--replication-factor 3|--file responses?\.bin|groups describe readers"
)
PAGES = [("README.md",), ("docs/getting-started.md", "docs/guide.md"), ("docs/queues.md",)]


def commands(page: str) -> list[str]:
    """Return the commands of a page's consoles without comments."""
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    found = [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines if line.startswith("$ ")]
    return [command for command in found if not SKIPPED.search(command)]


@pytest.fixture
def broker(tmp_path: Path, try_kbroker: Kbroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """A broker in place of the one at the default address and in the default directory."""
    need_own_broker()
    broker = BrokerProcess(tmp_path)
    broker.data_dir = tmp_path / "kbroker-data"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.properties").write_text("log.retention.hours=3d\n")
    try:
        broker.start()
        monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
        monkeypatch.setenv("KBROKER_LISTENERS", f"PLAINTEXT://{broker.bootstrap}")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        yield broker
    finally:
        broker.end()


@pytest.mark.parametrize("pages", PAGES, ids=" ".join)
def test_the_commands_of_the_docs_succeed(pages: Sequence[str], broker: BrokerProcess, try_kbroker: Kbroker) -> None:
    failed = []
    for command in [command for page in pages for command in commands(page)]:
        text = command.replace("127.0.0.1:9092", broker.bootstrap).replace("_SEC=5 ", "_SEC=1 ")
        text = text.replace("--follow", "--follow --count 1")
        if text.startswith("kbroker start"):
            error = start_beside_another(text.removesuffix("&"))
        elif text.startswith("kbroker ") and not re.search(r" [|>] |\$\(", text):
            result = try_kbroker(*shlex.split(text)[1:])
            error = f"{result.err}{result.out}" if result.status else ""
        else:
            error = run_in_shell(text)
        if error:
            failed.append((command, error))
    assert failed == []


def run_in_shell(text: str) -> str:
    function = f'kbroker() {{ {shlex.join(COMMAND)} "$@"; }}; set -o pipefail'
    done = subprocess.run(["bash", "-c", f"{function}; {text}"], capture_output=True, text=True)
    return done.stderr if done.returncode or "Traceback" in done.stderr else ""


def start_beside_another(text: str) -> str:
    """Start a broker with the command's options, on any free port, and stop it. Returns why it does not start."""
    assert "--data-dir second-data" in text, "the directory of the first broker"
    assert ":9092" not in text, "the port of the first broker"
    args = shlex.split(re.sub(r"127\.0\.0\.1:\d+|0\.0\.0\.0:\d+|localhost:\d+", "127.0.0.1:0", text))
    log = Path("second.log")
    with log.open("w") as output:
        process = subprocess.Popen([*COMMAND, *args[1:]], stdout=output, stderr=output)
    eventually(lambda: process.poll() is not None or "kbroker ready" in log.read_text(), "the second broker starts")
    process.send_signal(signal.SIGINT)
    process.wait(30)
    return "" if "kbroker ready" in log.read_text() else log.read_text()
