#!/bin/sh
# Makes .venv from the lock on a machine that has only Python 3, git and make.
#   tools/install.sh          sync .venv (makes uv.lock at the first call and checks it against lock.digest)
#   tools/install.sh lock     resolve anew up to exclude-newer in pyproject.toml and write lock.digest
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
uv_version=0.13.9

# A uv on PATH counts only if it runs here: a version manager's shim may refuse .python-version.
find_uv() {
    if found=$(command -v uv) && version=$("$found" --version 2>/dev/null); then
        case "$version" in
            "uv 0.9."* | "uv 0."[1-9][0-9].* | "uv "[1-9]*) printf '%s\n' "$found"; return ;;
        esac
    fi
    if [ ! -x .tools/uv/bin/uv ]; then
        # From /, so that a version manager does not read .python-version while 3.12 may be missing.
        (cd / && python3 -m venv "$root/.tools/uv" >&2 && "$root/.tools/uv/bin/pip" install --quiet "uv==$uv_version" >&2) || {
            rm -rf .tools/uv
            echo "install: cannot make uv $uv_version with python3. Install the venv module of your Python (Debian: python3-venv), or uv 0.9 or newer, and call again." >&2
            exit 1
        }
    fi
    printf '%s\n' "$root/.tools/uv/bin/uv"
}

# uv looks at PATH and its own store; version managers keep theirs elsewhere.
find_python() {
    if found=$("$uv" python find --no-python-downloads 3.12 2>/dev/null) && "$found" -c '' 2>/dev/null; then
        printf '%s\n' "$found"
        return
    fi
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python "$HOME"/.local/share/mise/installs/python/3.12*/bin/python; do
        if [ -x "$candidate" ]; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    if "$uv" python install --quiet 3.12 >&2 2>/dev/null; then
        "$uv" python find 3.12
        return
    fi
    echo "install: Python 3.12 is required, none was found. Install it (Debian 13: python3.12, pyenv: pyenv install 3.12, uv: uv python install 3.12) and call again." >&2
    exit 1
}

uv=$(find_uv)
UV_PYTHON=$(find_python)
export UV_PYTHON

case "${1:-sync}" in
    lock)
        "$uv" lock --upgrade
        "$UV_PYTHON" tools/lock_digest.py uv.lock --write lock.digest
        ;;
    sync)
        # Without a lock, or with one that another cut-off made, resolve: about 10 s, the same answer every time.
        if [ ! -f uv.lock ] || ! "$UV_PYTHON" tools/lock_digest.py uv.lock --check lock.digest 2>/dev/null; then
            rm -f uv.lock
            "$uv" lock --quiet
            "$UV_PYTHON" tools/lock_digest.py uv.lock --check lock.digest
        fi
        "$uv" sync --quiet --frozen --all-packages
        ;;
    *)
        echo "usage: tools/install.sh [sync|lock]" >&2
        exit 2
        ;;
esac
