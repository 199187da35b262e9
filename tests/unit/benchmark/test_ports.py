"""Ports of servers that several test processes start, and what is shown of a server that does not start."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmark.peers import LOG_TAIL, Kbroker
from scripts.ports import HIGHEST_PORT, LOWEST_PORT, free_ports


def test_ports_are_chosen_once() -> None:
    chosen = [port for count in (1, 3, 2) for first in [free_ports(count)] for port in range(first, first + count)]
    assert len(set(chosen)) == 6
    assert all(LOWEST_PORT <= port < HIGHEST_PORT for port in chosen)


def test_another_process_does_not_choose_the_same_ports() -> None:
    first = free_ports(2)
    code = f"from scripts import ports; print(*(ports._lock({first} + index, 1) for index in (0, 1)))"
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout == "False False\n"


def test_the_end_of_the_log_of_a_server_that_does_not_start_is_shown(tmp_path: Path) -> None:
    class Failing(Kbroker):
        def command(self) -> list[str]:
            return [sys.executable, "-c", f"print('x' * {LOG_TAIL}, flush=True); raise SystemExit('the port is taken')"]

    server = Failing(tmp_path)
    with pytest.raises(SystemExit, match=r"ended with 1 before it listened:\nx+\nthe port is taken"):
        server.start()
    assert server.process is None
