"""`kbroker version` and `kbroker completion`."""

import subprocess
from pathlib import Path
from typing import Annotated

import kbroker
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import argument

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def version() -> None:
    """Print the version, and the commit of a checkout."""
    commit = _commit(Path(kbroker.__file__).parents[1])
    print(f"kbroker {kbroker.__version__}{f' (commit {commit})' if commit else ''}")


def _commit(root: Path) -> str:
    """Return the commit of a checkout, with ", dirty" if files have changed; "" if root is none, or without git."""
    if not (root / ".git").exists():  # an installed package, whose directory may be ignored in somebody's repository
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=9", "--dirty=, dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def completion(shell: Annotated[str, argument("SHELL", f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}.")]) -> None:
    """Print the completion script of a shell.

    Example: source <(kbroker completion bash)
    """
    if shell not in SHELLS:
        raise usage_error(f"SHELL must be one of {', '.join(SHELLS)}, not {shell!r}")
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name="kbroker", complete_var="_KBROKER_COMPLETE", shell=shell))
