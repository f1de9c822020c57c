"""Environments of peers whose dependencies don't fit ours, below one folder."""

import shutil
import subprocess
from pathlib import Path

# What each installs with.
REQUIREMENTS = {
    "axolotl": ("torch==2.13.0", "axolotl==0.19.0"),
    "llamafactory": ("llamafactory==0.9.5",),
}
_PYTHON = "python3.11"


def python_of(name: str, folder: Path) -> Path | None:
    """Returns the interpreter of a peer's environment, or None where it isn't installed."""
    python = folder / name / "bin" / "python"
    return python if (folder / name / "installed.txt").exists() else None


def install(name: str, folder: Path) -> None:
    """The peer stands in an environment of its own; several GB, some minutes.

    Raises:
        SystemExit: there is no Python 3.11, or pip failed.
    """
    if python_of(name, folder):
        return
    interpreter = shutil.which(_PYTHON)
    if interpreter is None:
        raise SystemExit(f"peer {name}: needs {_PYTHON} on PATH, found none. Install it.")
    home = folder / name
    shutil.rmtree(home, ignore_errors=True)
    for words in (
        [interpreter, "-m", "venv", str(home)],
        [str(home / "bin" / "python"), "-m", "pip", "install", "-q", *REQUIREMENTS[name]],
    ):
        if subprocess.run(words, check=False).returncode:
            raise SystemExit(f"peer {name}: must install, got a failure of {' '.join(words)}.")
    (home / "installed.txt").write_text("\n".join(REQUIREMENTS[name]) + "\n")
