"""Adopted data: files that exist already become a complete step, without a copy."""

import dataclasses
import functools
import os
from typing import Any

from neve import storage
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
    def identity_payload(self) -> dict[str, Any]:
        """What identity is made of besides the name: the digest of the data's manifest."""
        return {"adopted": make_manifest(self.path)["digest"], "layout": FORMAT}


def adopt(name: str, path: str) -> ExecutorStep:
    """Return existing data as a step; its fingerprint follows from name and content.

    Args:
        name: Step name.
        path: File or folder that exists; it is read and never written.

    Raises:
        InputError: Nothing is there.
    """
    place = os.path.abspath(storage.local_path(path)) if storage.is_local(path) else path
    if not storage.exists(place):
        raise InputError(f"adopt {name!r}: the data must exist, got nothing at {path}. Check it.")
    return AdoptedStep(name=name, fn=check_adopted, path=place)


def check_adopted(config: None, output_path: str) -> None:
    """Do nothing: the worker digests what is there and publishes the record."""
