"""`--preflight` as a user runs it: the published model's config.json on a local hub, no GPU, no weights."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.sft.configs.snowball_h100 import SPEC
from experiments.sft.sources import HubModel
from tests.e2e import recipes
from tests.hub.server import LocalHub

CONFIG = {
    "architectures": ["GrugMoeForCausalLM"], "model_type": "grug_moe", "vocab_size": 128_256,
    "hidden_size": 2560, "num_hidden_layers": 26, "num_attention_heads": 20,
    "num_key_value_heads": 5, "head_dim": 128, "max_position_embeddings": 262_144,
    "sliding_window": 2048, "rms_norm_eps": 1e-5, "initializer_range": 0.0098821,
    "rope_theta": 10_000.0, "tie_word_embeddings": False, "num_experts": 256,
    "num_experts_per_tok": 4, "moe_intermediate_size": 1280,
    "shared_expert_intermediate_size": 2560, "qk_mult": 1.75,
    "grugmoe_attention_mode": "production", "grugmoe_artifact_schema_version": 1,
}  # fmt: skip
"""The published config.json of the 67B Snowball."""

MOST_SECONDS = 180


@pytest.fixture(scope="module")
def hub() -> Iterator[tuple[LocalHub, str]]:
    """Serves the recipe's model repository: its config, and one shard that must not be asked for."""
    assert isinstance(SPEC.model, HubModel)
    local = LocalHub()
    local.add_repo(
        SPEC.model.repo,
        "model",
        {
            "config.json": json.dumps(CONFIG).encode(),
            "tokenizer.json": b"{}",
            "tokenizer_config.json": b"{}",
            "model-00001-of-00039.safetensors": b"x" * 4096,
        },
        revision=SPEC.model.revision,
    )
    with local.serving() as endpoint:
        yield local, endpoint


def preflight(
    prefix: Path, endpoint: str, *args: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs the recipe with these options."""
    environment = recipes.environment(
        prefix, HF_ENDPOINT=endpoint, HF_HOME=str(prefix / "hf"), **env
    )
    return recipes.run(recipes.H100, *args, env=environment)


@pytest.mark.full
def test_recipe_on_32_h100_fits_and_says_what_it_needs(
    hub: tuple[LocalHub, str], tmp_path: Path
) -> None:
    """The model's exact size, its part of a device, memory, time, row lengths; in less than 3 minutes."""
    local, endpoint = hub
    started = time.monotonic()

    done = preflight(tmp_path, endpoint, "--accelerator", "32xH100", "--preflight", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - started < MOST_SECONDS
    report = json.loads(done.stdout)
    assert report["model"]["parameters"] == 67_078_882_816
    assert report["model"]["active_parameters"] == 2_341_766_656
    assert report["model"]["parameters_per_device"] == pytest.approx(2.99e9, rel=1e-3)
    assert report["train_step"]["positions"] == 262_144
    memory = report["bytes_per_device"]
    assert memory["weights"] == 4 * report["model"]["parameters_per_device"]
    assert memory["optimizer"] == pytest.approx(2 * memory["weights"], rel=1e-6)
    assert memory["peak"] < memory["usable"] == 73_600_000_000
    assert report["bytes_on_storage"]["export"] == 134_157_765_632
    assert [row["seq_len"] for row in report["contexts"]] == [2**power for power in range(12, 19)]
    fetched = [request.path for request in local.requests]
    assert not [path for path in fetched if path.endswith(".safetensors")]
    folders = {path.name for path in tmp_path.iterdir()}
    assert folders & {"tokenizers", "raw", "models", "mixtures", "checkpoints"} == {"tokenizers"}


@pytest.mark.full
def test_recipe_on_8_h100_is_refused_with_what_would_fit(
    hub: tuple[LocalHub, str], tmp_path: Path
) -> None:
    """Exit 2, the bytes, each single change that is too little, and the count that is enough."""
    done = preflight(tmp_path, hub[1], "--accelerator", "8xH100", "--preflight")

    assert done.returncode == 2, done.stdout + done.stderr
    assert "does not fit 8xH100" in done.stdout
    assert "weights and optimizer" in done.stdout
    assert "would fit   --accelerator 32xH100" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_dispatch_to_accelerators_asks_preflight_first(
    hub: tuple[LocalHub, str], tmp_path: Path
) -> None:
    """Eight H100s that are here: still refused, before any data is fetched."""
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / "nvidia-smi"  # what eight H100s would answer with
    tool.write_text("#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H100 80GB HBM3'; done\n")
    tool.chmod(0o755)
    prefix = tmp_path / "prefix"

    done = preflight(prefix, hub[1], "--accelerator", "8xH100", PATH=f"{tools}:/usr/bin:/bin")

    assert done.returncode == 2, done.stdout + done.stderr
    assert "does not fit 8xH100" in done.stderr
    assert not (prefix / "raw").exists()


def test_dry_run_does_not_run_preflight(tmp_path: Path) -> None:
    """A plan needs no config and writes nothing; together with --preflight it is refused."""
    env = recipes.environment(tmp_path)

    plan = recipes.run(recipes.H100, "--accelerator", "8xH100", "--dry_run", env=env)
    both = recipes.run(recipes.H100, "--accelerator", "8xH100", "--dry_run", "--preflight", env=env)

    assert plan.returncode == 0, plan.stderr
    assert "Preflight" not in plan.stdout
    assert both.returncode == 2
    assert "--dry_run" in both.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_config_and_offline_it_says_what_is_missing(tmp_path: Path) -> None:
    """The light step fails in one sentence, and preflight names what it needs."""
    done = preflight(
        tmp_path, "http://127.0.0.1:9", "--accelerator", "32xH100", "--preflight",
        HF_HUB_OFFLINE="1",
    )  # fmt: skip

    assert done.returncode in (1, 2)
    assert "config.json" in done.stderr
    assert "tokenizers/" in done.stderr
    assert "Traceback" not in done.stderr
