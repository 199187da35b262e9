"""What scripts/test installs: the tests that are chosen decide."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    ("args", "extras", "java"),
    [
        (["tests/unit/storage", "-k", "recovery"], "test", False),
        (["--numprocesses", "2", "tests/unit/cli/test_app.py"], "test", False),
        (["tests/unit/pipeline/test_plot.py"], "test spark", False),
        (["tests/unit"], "test spark", False),
        (["tests/unit/storage", "tests/compat/cli"], "test spark", True),
        (["-k", "fetch"], "test spark", True),
    ],
)
def test_unit_tests_need_neither_java_nor_spark(tmp_path: Path, args: list[str], extras: str, java: bool) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "test", tmp_path / "scripts")
    environment = (SCRIPTS / "environment").read_text()
    log = "".join(
        f'{function}() {{ echo "{line}" >>"$root/log"; }}\n'
        for function, line in (("need_java", "java"), ("need_chromium", "chromium"), ("need_environment", "$*"))
    )
    (tmp_path / "scripts/environment").write_text(f"{environment}\n{log}\n")
    for name in ("ruff", "mypy", "pytest", "python"):
        program = tmp_path / ".venv/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    subprocess.run([tmp_path / "scripts/test", *args], check=True, capture_output=True, env=os.environ)
    assert (tmp_path / "log").read_text().splitlines() == [*(["java", "chromium"] if java else []), extras]
