"""Adopted data: files that exist already become a complete step, without a copy."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from neve import storage
from neve.digest_memory import DigestMemory
from neve.errors import InputError
from neve.manifest import make_manifest
from neve.records import FORMAT
from neve.step import ExecutorStep


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AdoptedStep(ExecutorStep):
    """A step whose output lies elsewhere; its state lives under the prefix, its files stay."""

    path: str = ""
    """Absolute path or URL of the data; never written."""

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the data's manifest."""
        return adopted_manifest(self.path)["digest"]

    def identity_payload(self, fn_name: str, config: Any) -> dict[str, Any]:
        """Return what identity is made of besides the name: the content, and the check of it."""
        payload: dict[str, Any] = {"adopted": self.digest, "layout": FORMAT}
        if self.fn is not check_adopted:
            payload |= {"fn": fn_name, "version": self.version, "config": config}
        return payload


def adopt(
    name: str,
    path: str,
    *,
    check: Callable[..., Any] | None = None,
    config: Any = None,
    version: str = "1",
    outputs: tuple[str, ...] = (),
) -> ExecutorStep:
    """Return existing data as a step; its fingerprint follows from name, content and check.

    Local files are digested once: later plans compare sizes, times and inodes only.

    Args:
        name: Step name.
        path: File or folder that exists; it is read and never written.
        check: Step function `check(config, path)` that reads the data, refuses what is wrong and
            returns results; run once, before anything uses the data. None: nothing is checked.
        config: Its config; a step in it is a dependency.
        version: Bumped when the meaning of the check changes.
        outputs: Relative paths or globs that must exist and be non-empty.

    Raises:
        InputError: Nothing is there.
    """
    place = os.path.abspath(storage.local_path(path)) if storage.is_local(path) else path
    if not storage.exists(place):
        raise InputError(f"adopt {name!r}: the data must exist, got nothing at {path}. Check it.")
    return AdoptedStep(
        name=name,
        fn=check or check_adopted,
        config=config,
        version=version,
        outputs=outputs,
        path=place,
    )


def adopted_manifest(path: str) -> dict[str, Any]:
    """Return the manifest of foreign data; local files that did not change are not read again."""
    if not storage.is_local(path):
        return make_manifest(path)
    memory = DigestMemory()
    manifest = make_manifest(path, memory.digest)
    memory.save()
    return manifest


def check_adopted(config: None, output_path: str) -> None:
    """Do nothing: the worker digests what is there and publishes the record."""
