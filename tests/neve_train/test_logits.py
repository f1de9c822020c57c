"""Logits of exports, computed a second time by code that knows only the Hugging Face folder."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve_train.errors import TrainInputError
from neve_train.verify_logits import TOLERANCE, check_logits, random_ids
from safetensors.numpy import load_file, save_file

from benchmarks.tokenize import CACHE
from benchmarks.tokenize_peers.environments import python_of
from steps.verify_logits import VerifyLogitsConfig, verify_logits
from tests.neve_train import reference_dense, reference_snowball
from tests.neve_train.reference_run import change_last_embedding

PROGRAM = Path(__file__).with_name("reference_run.py")
Run = Callable[..., Any]
REFERENCES = {
    "qwen3": reference_dense.logits,
    "qwen3_tied": reference_dense.logits,
    "snowball": reference_snowball.logits,
}
LAYER = "model.layers.1"


@pytest.fixture(scope="module")
def computed(run_toy: Run) -> dict[str, Any]:
    """Facts of exports whose ids and logits by Levanter lie beside them."""
    return run_toy("computed", program=PROGRAM)


def difference(folder: Path, kind: str, toy: Path) -> tuple[float, np.ndarray]:
    """Returns the largest difference to Levanter in standard deviations, and the largest per id."""
    stored = np.load(toy / f"{kind}.npz")
    expected = stored["logits"]
    found = np.abs(REFERENCES[kind](folder, stored["ids"]) - expected).max(-1) / expected.std()
    per_id = np.zeros(stored["ids"].max() + 1)
    np.maximum.at(per_id, stored["ids"].ravel(), found.ravel())
    return float(found.max()), per_id


@pytest.mark.full
@pytest.mark.parametrize("kind", sorted(REFERENCES))
def test_an_export_computed_by_its_formulas_gives_levanters_logits(
    kind: str, computed: dict[str, Any], toy: Path
) -> None:
    """After every id of the vocabulary, in random order, in rows of 160 with a window of 64.

    float64 against float32: sums of some 100 terms round by 1e-6 of their size, through up to 5 layers.
    """
    ids = np.load(toy / f"{kind}.npz")["ids"]

    largest, _ = difference(toy / f"{kind}-hf", kind, toy)

    assert sorted(set(ids.ravel().tolist())) == list(range(512))
    assert ids.shape[1] > json.loads((toy / "tokenizer" / "config.json").read_text()).get(
        "sliding_window"
    )
    assert computed[kind]["spread"] > 0.3
    assert largest < 2e-5


@pytest.mark.full
@pytest.mark.usefixtures("computed")
def test_levanters_logits_are_the_same_where_experts_are_split(run_toy: Run) -> None:
    """4 devices with one expert each, and rows that 4 doesn't divide: no token is dropped."""
    result = run_toy("split", num_devices=4, program=PROGRAM)

    assert result["num_devices"] == 4
    assert result["difference"] < 2e-5


def swapped(first: str, second: str) -> Callable[[dict[str, np.ndarray]], None]:
    """Two tensors of the same shape under each other's name."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        first_name, second_name = f"{LAYER}.{first}.weight", f"{LAYER}.{second}.weight"
        tensors[first_name], tensors[second_name] = tensors[second_name], tensors[first_name]

    return change


def zeroed(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    """A tensor that got lost."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{LAYER}.{name}"] = np.zeros_like(tensors[f"{LAYER}.{name}"])

    return change


FAULTS: list[tuple[str, str, Any]] = [
    ("qwen3", "keys for values", swapped("self_attn.k_proj", "self_attn.v_proj")),
    ("qwen3", "norm of keys for queries", swapped("self_attn.q_norm", "self_attn.k_norm")),
    ("qwen3", "gate for up", swapped("mlp.gate_proj", "mlp.up_proj")),
    ("qwen3", "rope_theta", {"rope_theta": 10_000.0}),
    ("qwen3", "tie_word_embeddings", {"tie_word_embeddings": True}),
    ("snowball", "keys for values", swapped("self_attn.k_proj", "self_attn.v_proj")),
    ("snowball", "gate for up", swapped("mlp.experts.gate_proj", "mlp.experts.up_proj")),
    ("snowball", "router bias", zeroed("mlp.router.bias")),
    ("snowball", "gates of heads", zeroed("self_attn.attn_gate.weight")),
    ("snowball", "sliding_window", {"sliding_window": 63}),
    ("snowball", "qk_mult", {"qk_mult": 1.5}),
    ("snowball", "rope_theta", {"rope_theta": 50_000.0}),
    ("snowball", "layers", {"num_hidden_layers": 4}),
]


def damaged(source: Path, folder: Path, change: Any) -> Path:
    """Returns a copy of a folder with changed tensors, or with other values in config.json."""
    shutil.copytree(source, folder)
    if isinstance(change, dict):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | change))
        return folder
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.full
@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize(
    ("kind", "change"), [pytest.param(k, c, id=f"{k}-{name}") for k, name, c in FAULTS]
)
def test_the_comparison_sees_a_fault(kind: str, change: Any, toy: Path, tmp_path: Path) -> None:
    """Each tensor or value that is read otherwise is a difference far beyond rounding."""
    folder = damaged(toy / f"{kind}-hf", tmp_path / "damaged", change)

    largest, _ = difference(folder, kind, toy)

    assert largest > 10 * TOLERANCE


@pytest.mark.full
@pytest.mark.usefixtures("computed")
def test_a_fault_after_one_rare_id_alone_is_seen(toy: Path, tmp_path: Path) -> None:
    """The embedding of the last id, which no tokenizer emits: only rows that hold it tell."""

    folder = tmp_path / "damaged"
    shutil.copytree(toy / "snowball-hf", folder)
    change_last_embedding(folder)

    largest, per_id = difference(folder, "snowball", toy)

    assert per_id.argmax() == 511
    assert largest > 10 * TOLERANCE


def model_folder(folder: Path, **values: Any) -> Path:
    """Writes a config.json and a tokenizer's special tokens."""
    folder.mkdir()
    facts = {"model_type": "qwen3", "vocab_size": 1000, "max_position_embeddings": 4096, **values}
    (folder / "config.json").write_text(json.dumps(facts))
    tokens = [{"id": index, "content": f"<{index}>"} for index in (3, 500, 1200)]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    return folder


def test_random_ids_hold_special_ones_and_those_at_the_borders(tmp_path: Path) -> None:
    """All of the vocabulary, no more; the rare ones where logits are compared; the same each time."""
    folder = str(model_folder(tmp_path / "model"))

    ids, keep = random_ids(folder, 8, 256, seed=0)

    assert (ids.shape, keep, ids.dtype) == ((8, 256), 256, np.int32)
    assert (ids.min(), ids.max()) == (0, 999)
    assert {0, 3, 500, 999} <= set(ids.ravel().tolist())
    assert len(set(ids.ravel().tolist())) > 800  # of 1,000: 2,048 draws miss 13 % of them
    assert np.array_equal(ids, random_ids(folder, 8, 256, seed=0)[0])
    assert not np.array_equal(ids, random_ids(folder, 8, 256, seed=1)[0])


@pytest.mark.parametrize(
    ("values", "length", "keep"),
    [
        ({"model_type": "olmo3", "sliding_window": 1024}, 1024 + 128, 256),
        ({"model_type": "olmo3", "sliding_window": 4096}, 4096, 256),
        ({"model_type": "qwen2", "sliding_window": 2048, "use_sliding_window": False}, 256, 256),
        ({"max_position_embeddings": 100}, 100, 100),
    ],
)
def test_rows_of_random_ids_are_longer_than_the_window_that_is_used(
    values: dict[str, Any], length: int, keep: int, tmp_path: Path
) -> None:
    """As far as the model has positions; one end of the vocabulary is among the last `keep`."""
    ids, kept = random_ids(str(model_folder(tmp_path / "model", **values)), 2, 256, seed=0)

    assert (ids.shape, kept) == ((2, length), keep)
    assert {0, 3, 500, 999} <= set(ids[:, length - keep :].ravel().tolist())


def test_logits_that_differ_anywhere_are_told_with_the_place() -> None:
    """One logit of one position; what is not a number differs too."""
    rng = np.random.default_rng(0)
    ours = rng.standard_normal((2, 3, 8)).astype(np.float32)
    ids = np.arange(10).reshape(2, 5)  # the last 3 of 5 positions are compared

    close = ours + np.float32(1e-5)
    assert check_logits("m", ids, ours, close)["max_difference"] == pytest.approx(1e-5, rel=0.1)
    for value in (ours[1, 0, 4] + 0.1, np.nan):
        theirs = close.copy()
        theirs[1, 0, 4] = value
        with pytest.raises(TrainInputError, match=r"after id 7 at position 2, and 1 of 6 posi"):
            check_logits("m", ids, ours, theirs)
    with pytest.raises(TrainInputError, match=r"same shape, got \(2, 3, 8\) .* \(2, 3, 7\)"):
        check_logits("m", ids, ours, theirs[..., 1:])


def test_verify_logits_refuses_before_work_what_cannot_be_computed_twice(tmp_path: Path) -> None:
    """No interpreter, or one whose transformers fails: told with its reason and what to pass."""
    folder = model_folder(tmp_path / "model", model_type="grug_moe")
    out = str(tmp_path / "out")

    unable = "(No module named 'torch'|`grug_moe`)"  # the latter where there is a torch
    for python, reason in (("/no/python", "No such file"), (sys.executable, unable)):
        config = VerifyLogitsConfig(
            folder=str(folder), checkpoint=str(tmp_path), transformers_python=python
        )
        with pytest.raises(TrainInputError, match=f"must compute its logits, got .*{reason}"):
            verify_logits(config, out)
    with pytest.raises(TrainInputError, match="must be a local folder for transformers"):
        verify_logits(VerifyLogitsConfig(folder="s3://bucket/model", checkpoint=""), out)
    with pytest.raises(TrainInputError, match="num_rows must be 1 or more, got 0"):
        VerifyLogitsConfig(folder="", checkpoint="", num_rows=0)
    assert not Path(out).exists()


def transformers_python() -> str:
    """Returns an interpreter with torch and transformers, or skips the test: ours has no torch."""
    peer = python_of("axolotl", CACHE / "peers")
    python = os.environ.get("NEVE_TRANSFORMERS_PYTHON") or (peer and str(peer))
    if not python:
        pytest.skip("no torch: set NEVE_TRANSFORMERS_PYTHON, or install the tokenizing peers")
    return python


@pytest.mark.full
def test_transformers_computes_levanters_logits(
    run_toy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3 and of 28 layers, far within the tolerance; one wrong row of embeddings is told."""
    monkeypatch.setenv("NEVE_TRANSFORMERS_PYTHON", transformers_python())

    results = run_toy("verified", program=PROGRAM)

    for kind in ("qwen3", "deep"):
        facts = results[kind]
        assert (facts["row_length"], facts["num_positions"], facts["train_step"]) == (256, 1024, 1)
        assert facts["logit_std"] > 0.3
        assert facts["max_difference"] < 0.1 * TOLERANCE * facts["logit_std"]
        assert set(facts) >= {"transformers", "torch"}
    assert "off after id 511 at position" in results["refusal"]
    assert "`grug_moe`" in results["snowball"]
