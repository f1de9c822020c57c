"""A program of the tests of logits: small models exported, and computed by Levanter once.

python reference_run.py FOLDER MODE prints one JSON line. FOLDER holds what toy_run.make_inputs writes.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.neve_train.results import tell

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50_000.0,
}
SNOWBALL: dict[str, Any] = {"num_hidden_layers": 5}  # short, short, short, long, long
KINDS = {
    "qwen3": {**QWEN3, "tie_word_embeddings": False},
    "qwen3_tied": {**QWEN3, "tie_word_embeddings": True},
    "snowball": SNOWBALL,
}
"""Changes to the toy's config.json."""


def computed(folder: Path) -> Any:
    """Exports a model of each kind, and writes ids and Levanter's logits beside it."""
    from neve_train.checkpoint_logits import checkpoint_logits

    results = {}
    for kind, values in KINDS.items():
        hf = export_model(folder, kind, values)
        ids = every_id(json.loads((hf / "config.json").read_text())["vocab_size"])
        logits, step = checkpoint_logits(str(folder / kind), str(hf), ids, ids.shape[1])
        np.savez(folder / f"{kind}.npz", ids=ids, logits=logits)
        results[kind] = {"train_step": step, "spread": float(logits.std())}
    return results


def every_id(vocab_size: int) -> np.ndarray:
    """Returns int32[row, 160]: every id of the vocabulary once or more, in random order."""
    num_rows = -(-vocab_size // 160)
    places = np.random.default_rng(2).permutation(num_rows * 160)
    return (places % vocab_size).astype(np.int32).reshape(num_rows, 160)


def split(folder: Path) -> Any:
    """Computes three rows of the Snowball once more, its experts split over the devices."""
    import jax
    from neve_train.checkpoint_logits import checkpoint_logits

    stored = np.load(folder / "snowball.npz")
    ids, expected = stored["ids"][:3], stored["logits"][:3, -50:]
    logits, _ = checkpoint_logits(str(folder / "snowball"), str(folder / "snowball-hf"), ids, 50)
    return {
        "num_devices": jax.device_count(),
        "difference": float(np.abs(logits - expected).max() / expected.std()),
    }


def verified(folder: Path) -> Any:
    """Compares Qwen3 with transformers, a Snowball, and a folder with one wrong embedding."""
    deep = {**KINDS["qwen3"], "num_hidden_layers": 28}  # rounding has room to grow
    results = {"snowball": compare(folder, "snowball", folder / "tokenizer")}
    for kind, values in (("qwen3", KINDS["qwen3"]), ("deep", deep)):
        if not (folder / f"{kind}-hf").exists():
            export_model(folder, kind, values)
        results[kind] = compare(folder, kind, folder / f"{kind}-hf")
    other = folder / "other-embedding"
    shutil.copytree(folder / "qwen3-hf", other)
    change_last_embedding(other)
    results["refusal"] = compare(folder, "qwen3", other)
    return results


def change_last_embedding(hf: Path) -> None:
    """The last id of the vocabulary, which no tokenizer emits, gets the embedding of the one before."""
    from safetensors.numpy import load_file, save_file

    for file in hf.glob("*.safetensors"):
        tensors = load_file(file)
        if "model.embed_tokens.weight" in tensors:
            values = tensors["model.embed_tokens.weight"].copy()
            values[-1] = values[-2]
            save_file({**tensors, "model.embed_tokens.weight": values}, file, {"format": "pt"})


def compare(folder: Path, kind: str, hf: Path) -> Any:
    """Returns the results of verify_logits, or what it refuses with."""
    from neve_train.errors import TrainInputError

    from steps.verify_logits import VerifyLogitsConfig, verify_logits

    config = VerifyLogitsConfig(
        folder=str(hf),
        checkpoint=str(folder / kind),
        transformers_python=os.environ["NEVE_TRANSFORMERS_PYTHON"],
    )
    try:
        return verify_logits(config, str(folder / f"{kind}-verified"))
    except TrainInputError as error:
        return str(error)


def export_model(folder: Path, kind: str, values: dict[str, Any]) -> Path:
    """Writes a checkpoint none of whose weights is what a fresh model has, and exports it."""
    from neve_chat.templates import load_template

    from steps.export_hf import ExportHfConfig, export_hf

    model = folder / f"{kind}-model"
    shutil.copytree(folder / "tokenizer", model)
    facts = {} if "model_type" in values else json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**facts, **values}))
    save_checkpoint_of(model, folder / kind)
    hf = folder / f"{kind}-hf"
    export = ExportHfConfig(
        checkpoint=str(folder / kind),
        model=str(model),
        tokenizer=str(folder / "tokenizer"),
        template_text=load_template("marin").text,
        max_shard_bytes=200_000,
    )
    export_hf(export, str(hf))
    return hf


def save_checkpoint_of(model_path: Path, output: Path) -> None:
    """Saves a model of that config.json natively: each weight a fresh one plus noise."""
    import haliax as hax
    import jax
    import jax.random as jrandom
    from haliax import Axis
    from levanter.checkpoint import save_checkpoint
    from neve_train import devices
    from neve_train.families import read_model_config

    devices.initialize()
    config = read_model_config(str(model_path))
    axes = {"data": jax.device_count(), "expert": 1, "context": 1, "model": 1}
    explicit = config.requires_explicit_mesh_axes
    rng = np.random.default_rng(3)

    def noisy(leaf: Any) -> Any:
        values = np.asarray(leaf) + 0.1 * rng.standard_normal(leaf.shape)
        return jax.device_put(values.astype(np.float32), leaf.sharding)

    with devices.on_mesh(devices.base_trainer_config(axes, explicit_axes=explicit)):
        Vocab = Axis("vocab", config.vocab_size)
        model = hax.named_jit(lambda key: config.build(Vocab, key=key))(jrandom.PRNGKey(1))
        model = jax.tree.map(noisy, model)
        save_checkpoint(
            {"model": model}, 0, str(output / "checkpoints" / "step-0"), is_temporary=False
        )


MODES = {"computed": computed, "split": split, "verified": verified}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    tell(MODES[sys.argv[2]](root))
