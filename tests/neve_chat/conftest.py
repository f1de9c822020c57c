"""
Fixtures of the conversation room.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "tiny_tokenizer", Path(__file__).with_name("tiny_tokenizer.py")
)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """
    Folder of the tiny tokenizer.
    """
    return str(_MODULE.build_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="session")
def auto_bos_tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """
    The same tokenizer, which adds a begin-of-text token by itself.
    """
    folder = tmp_path_factory.mktemp("auto-bos-tokenizer")
    return str(_MODULE.build_tokenizer(folder, has_auto_bos=True))
