"""Shell completion in bash, of names that a broker knows."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.compat.cli.conftest import COMMAND, TIMEOUT_S, Kbroker
from tests.compat.support import DEADLINE_S

pytestmark = pytest.mark.compat


@pytest.fixture
def bash(kbroker: Kbroker, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kbroker:
    """Runs bash completion: bash("topics", "describe", "a") returns the completions of the last word."""
    if shutil.which("bash") is None:
        pytest.skip("not run: needs bash")
    command = tmp_path / "kbroker"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    script = tmp_path / "completion"
    # typer detects the parent shell, and the parent of the tests may be none.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", shutil.which("bash")))
    script.write_text(kbroker("--show-completion").out)

    def complete(*words: str) -> list[str]:
        program = (
            f"source {script}; COMP_WORDS=(kbroker {shlex.join(words)}); COMP_CWORD={len(words)};"
            f"_kbroker_completion {command}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", program], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete  # type: ignore[return-value]


def test_topics_groups_and_configs_are_completed(bash: Kbroker, kbroker: Kbroker, name: str, group: str) -> None:
    for topic in (f"{name}-a", f"{name}-b"):
        kbroker("topics", "create", topic, "--partitions", "1")
    kbroker("produce", f"{name}-a", "v")
    kbroker("groups", "reset-offsets", group, "--topic", f"{name}-a", "--to-latest", "--execute")
    assert bash("topics", "describe", name) == [f"{name}-a", f"{name}-b"]
    assert bash("consume", f"{name}-b") == [f"{name}-b"]
    assert bash("groups", "describe", group[:-2]) == [group]
    assert bash("groups", "reset-offsets", group, "--topic", f"{name}-a") == [f"{name}-a"]
    assert bash("configs", "get", "topic", name) == [f"{name}-a", f"{name}-b"]
    assert bash("configs", "set", "topic", f"{name}-a", "retention.b") == ["retention.bytes="]


def test_transactional_ids_are_completed(bash: Kbroker, bootstrap: str, name: str) -> None:
    Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{name}-id"}).init_transactions(DEADLINE_S)
    assert bash("transactions", "describe", name) == [f"{name}-id"]
    assert bash("transactions", "terminate", name) == [f"{name}-id"]
