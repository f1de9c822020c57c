"""Fixture `hub`: a local hub that the process's environment points at."""

from collections.abc import Iterator

import pytest

from tests.hub.server import LocalHub


@pytest.fixture
def hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalHub]:
    """Serve an empty hub; HF_ENDPOINT names it, and no token of the user is seen."""
    local = LocalHub(tokens=("hf_secret_for_tests",))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf_home")))
    with local.serving() as endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        yield local
