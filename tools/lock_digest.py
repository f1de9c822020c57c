"""The digest of what a uv.lock pins: every (name, version, hashes), and nothing about where it came from.

    python tools/lock_digest.py uv.lock --check lock.digest
    python tools/lock_digest.py uv.lock --write lock.digest

A lock file records the download hosts of the site that made it, so it is not committed. The cut-off in
pyproject.toml makes every site resolve the same versions; this digest proves that it did.
"""

import argparse
import hashlib
import json
import sys
import tomllib
from pathlib import Path


def lock_digest(lock: Path) -> str:
    """Returns the sha256 (hex) over the sorted (name, version, sorted file hashes) of a lock."""
    packages = tomllib.loads(lock.read_text())["package"]
    pins = []
    for package in packages:
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        hashes = sorted({file["hash"] for file in files if "hash" in file})
        pins.append([package["name"], package.get("version", ""), hashes])
    return hashlib.sha256(json.dumps(sorted(pins)).encode()).hexdigest()


def main() -> int:
    """Checks or writes the digest; exit 1 with one sentence when it differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lock", type=Path)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", type=Path, metavar="FILE")
    mode.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    digest = lock_digest(args.lock)
    if args.write:
        args.write.write_text(digest + "\n")
        return 0
    expected = args.check.read_text().strip() if args.check.exists() else "no digest"
    if digest != expected:
        print(
            f"{args.lock}: its pins must have the digest {expected[:12]} of {args.check}, got {digest[:12]}. "
            "Call `make lock` if the dependencies or the cut-off changed on purpose.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
