"""Secrets: values of environment variables that must never be stored."""

import os
import re
from collections.abc import Mapping

_LAST_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_MIN_LENGTH = 3  # shorter values would blank out ordinary text
MASK = "***"


def is_secret_name(name: str) -> bool:
    """Return True if the last word of a variable's name says that its value is a secret."""
    return name.upper().rsplit("_", 1)[-1] in _LAST_WORDS


def secret_values(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the secret values of an environment by name, longest value first."""
    found = {
        name: value
        for name, value in (os.environ if environ is None else environ).items()
        if is_secret_name(name) and len(value) >= _MIN_LENGTH
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


class Redactor:
    """Replaces secret values by *** in text and bytes."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Take the secrets of an environment, by default this process's."""
        values = list(secret_values(environ).values())
        self._text = re.compile("|".join(map(re.escape, values))) if values else None
        encoded = b"|".join(re.escape(value.encode()) for value in values)
        self._bytes = re.compile(encoded) if values else None

    def text(self, text: str) -> str:
        """Return the text with every secret value masked."""
        return self._text.sub(MASK, text) if self._text else text

    def raw(self, data: bytes) -> bytes:
        """Return the bytes with every secret value masked."""
        return self._bytes.sub(MASK.encode(), data) if self._bytes else data
