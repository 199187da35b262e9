"""The commands of the documentation succeed, and print what it shows, on a broker with default settings.

With WRITE_DOCS=1 the pages get what their commands print.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scripts.ports import free_ports
from tests.compat.cli.conftest import COMMAND, Kbroker
from tests.compat.cli.docs.terminal import Terminal, is_shown, steps
from tests.compat.support import BrokerProcess, eventually, need_own_broker

ROOT = Path(__file__).parents[4]
# Commands that are not run here, for what they need or what ran before.
SKIPPED = re.compile(
    r"^(docker|export|kcat|spark-shell|\.|scala)|pip install|kbroker (archive|replay) "
    r"|kbroker start --data-dir /var|--replication-factor 3|--file responses?\.bin"
)
PAGES = [("README.md",), ("docs/getting-started.md", "docs/guide.md"), ("docs/queues.md",), ("docs/retry.md",)]
SYSTEMS = [(f"examples/{name}/README.md",) for name in ("order_flow", "enrichment", "work_queue", "change_data")]
# Write what the commands print into the pages, where it is not what they show.
IS_WRITTEN = os.environ.get("WRITE_DOCS", "") not in ("", "0")


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
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        yield broker
    finally:
        broker.end()


@pytest.mark.parametrize("pages", PAGES + SYSTEMS, ids=" ".join)
def test_the_docs_show_what_their_commands_print_in_a_terminal(
    pages: Sequence[str], broker: BrokerProcess, try_kbroker: Kbroker, terminal: Terminal
) -> None:
    failed = []
    second, metrics = f"127.0.0.1:{free_ports()}", f"127.0.0.1:{free_ports()}"
    for page, step in [(ROOT / name, step) for name in pages for step in steps(ROOT / name)]:
        if (step.is_python and page.name != "getting-started.md") or SKIPPED.search(step.command):
            continue
        text = step.command.replace("127.0.0.1:9092", broker.bootstrap).replace("_SEC=5 ", "_SEC=1 ")
        text = text.replace("127.0.0.1:19092", second).replace("127.0.0.1:9308", metrics)
        text = text.replace("kbroker doctor", f"kbroker doctor --listen {broker.bootstrap}")
        text = text if "--count" in text else text.replace("--follow", "--follow --count 1")
        if step.is_python:
            Path("program.py").write_text(text)
            text = "python program.py"
        is_simple = text.startswith("kbroker ") and not step.output and not re.search(r"[|>&$]", text)
        if text.startswith("kbroker start") and not text.endswith("&"):
            error = start_beside_another(text)
        elif is_simple:
            result = try_kbroker(*shlex.split(text)[1:])
            error = f"{result.err}{result.out}" if result.status else ""
        else:
            printed, status = terminal.run(text)
            is_right = not status and "Traceback" not in printed
            if is_right and IS_WRITTEN and not is_shown(step.output, printed):
                page.write_text(page.read_text().replace(step.source + step.output, step.with_output(printed)))
            error = "" if is_right and is_shown(step.output, printed) else printed
        if error:
            failed.append(f"{page.name}: {step.command}\n{error}")
    assert not failed, "\n".join(failed)


@pytest.fixture
def terminal(broker: BrokerProcess, tmp_path: Path) -> Iterator[Terminal]:
    """A shell in which `kbroker` and `python` are those of the tests, beside the directory of the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    for name, command in {"kbroker": COMMAND, "python": [sys.executable]}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    terminal = Terminal(tmp_path, {"PATH": path, "BANK": f"http://127.0.0.1:{free_ports()}"})
    yield terminal
    terminal.close()


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
