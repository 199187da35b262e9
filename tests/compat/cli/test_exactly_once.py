"""The programs of docs/exactly-once.md process each record once, also when they are killed and restarted."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compat.cli.conftest import Kbroker
from tests.compat.support import eventually

pytestmark = pytest.mark.compat

PAGE = Path(__file__).parents[3] / "docs" / "exactly-once.md"
PROGRAMS = {
    re.search(r"^from (\w+) import", text, re.MULTILINE)[1]: text  # type: ignore[index]
    for text in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
}
# Longer than the session.timeout.ms of the programs.
WAIT_S = 180


def test_the_page_has_a_program_for_each_client() -> None:
    assert sorted(PROGRAMS) == ["confluent_kafka", "kafka"]


@contextmanager
def running(program: Path, bootstrap: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, str(program), bootstrap]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("client", PROGRAMS)
def test_each_order_has_one_invoice(kbroker: Kbroker, bootstrap: str, tmp_path: Path, name: str, client: str) -> None:
    text = PROGRAMS[client]
    for word in ("orders", "invoices", "invoicing"):
        text = text.replace(f'"{word}', f'"{name}-{word}')
    program = tmp_path / "program.py"
    program.write_text(text)
    orders, invoices = f"{name}-orders", f"{name}-invoices"
    for topic in (orders, invoices):
        kbroker("topics", "create", topic, "--partitions", "3")

    def order(first: int, last: int) -> None:
        kbroker("produce", orders, "--quiet", stdin="".join(f"{number}\n" for number in range(first, last)))

    def invoiced() -> list[str]:
        return kbroker("consume", invoices, "--read-committed").lines()

    order(0, 500)
    with running(program, bootstrap):
        eventually(invoiced, "the first invoices", WAIT_S)
        order(500, 5000)
        # Most likely, the program is killed while it processes these.
        eventually(lambda: len(kbroker("consume", invoices).lines()) > 500, "more invoices", WAIT_S)
    order(5000, 5500)
    with running(program, bootstrap) as process:
        eventually(lambda: len(invoiced()) >= 5500, "all invoices", WAIT_S)
        assert process.poll() is None
    assert invoiced() == sorted(f"{number}: paid" for number in range(5500))
