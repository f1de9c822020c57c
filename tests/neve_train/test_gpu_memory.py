"""What preflight counts on is what jax takes of a GPU."""

import json
import os
import subprocess
import sys

import pytest
from neve_train.accelerators import memory_variables, parse_accelerator
from neve_train.errors import TrainInputError

NAMES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
PROGRAM = """
import json, sys
import neve_train.export, neve_train.generation, neve_train.lora_export, neve_train.training
from jax._src import xla_bridge
from jaxlib import xla_client
from neve_train import devices
facts = {"too_early": xla_bridge.backends_are_initialized()}
devices.initialize(sys.argv[1])
facts["options"] = xla_client.generate_pjrt_gpu_plugin_options()
print(json.dumps(facts))
"""


@pytest.fixture(autouse=True)
def no_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what the environment of the tests says."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def usable(text: str = "1xH100") -> int | None:
    """Returns the bytes of a device that preflight judges by."""
    return parse_accelerator(text)[1].usable_bytes


def test_preflight_judges_by_the_share_that_programs_set() -> None:
    """One number: a program has jax take what preflight says can be used."""
    variables = memory_variables()

    assert variables == {"XLA_CLIENT_MEM_FRACTION": "0.92"}
    assert usable() == int(80e9 * float(variables["XLA_CLIENT_MEM_FRACTION"]))


@pytest.mark.parametrize("name", NAMES)
def test_share_that_the_user_set_is_kept_and_judged_by(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under either of its names; jax refuses both at once, so that nothing is added."""
    monkeypatch.setenv(name, "0.5")

    assert memory_variables() == {}
    assert usable() == 40 * 10**9


@pytest.mark.parametrize("text", ["0", "1.5", "half", "nan"])
def test_share_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is judged by it."""
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", text)

    with pytest.raises(TrainInputError, match=r"above 0 and at most 1, got .* to use 0\.92"):
        usable()


@pytest.mark.full
@pytest.mark.parametrize(("environ", "fraction"), [({}, 0.92), ({NAMES[1]: "0.5"}, 0.5)])
def test_programs_give_jax_the_share_before_it_sees_devices(
    environ: dict[str, str], fraction: float, tmp_path: os.PathLike[str]
) -> None:
    """jax itself makes its options for a GPU from what a training process has set."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environ},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    assert facts == {"too_early": False, "options": facts["options"]}
    assert facts["options"]["memory_fraction"] == fraction
