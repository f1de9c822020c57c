"""Small models of other kinds than Snowball for the tests: made and run."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.neve_train.toy_run import SEQ_LEN

COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}
"""What the config.json of each family says alike."""

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "olmo2": {},
    "olmo3": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "rope_theta": 500_000.0,
        "sliding_window": 48,
    },
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
"""And what each says for itself."""


def make_model(folder: Path, family: str, path: Path) -> Path:
    """Writes a Hugging Face folder of a small random model, float32, with the toy's tokenizer."""
    import jax
    from levanter.tokenizers import load_tokenizer
    from neve_train import devices
    from neve_train.families import hf_converter, read_model_config
    from safetensors.numpy import save_file

    path.mkdir(parents=True)
    values = {"model_type": family, **COMMON, **CONFIGS[family]}
    (path / "config.json").write_text(json.dumps(values))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "tokenizer" / name, path / name)
    config = read_model_config(str(path))
    with devices.on_mesh(mesh_of(config)):
        model = config.build(vocab_of(config), key=jax.random.PRNGKey(1))
        converter = hf_converter(config, load_tokenizer(str(path)), str(path))
        converter.save_pretrained(model, str(path), save_tokenizer=False)
    rng = np.random.default_rng(0)
    drawn = {name: _drawn(rng, name, value.shape) for name, value in sorted(tensors(path).items())}
    save_file(drawn, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(values))  # as the hub would have it
    return path


def _drawn(rng: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns weights none of which is 0 or 1, as biases and norms of a fresh model are."""
    values = 0.05 * rng.standard_normal(shape)
    return (values + ("norm" in name)).astype(np.float32)


def vocab_of(config: Any) -> Any:
    """Returns the vocabulary axis of a config."""
    from haliax import Axis

    return Axis("vocab", config.vocab_size)


def mesh_of(config: Any) -> Any:
    """Returns the trainer config of one device."""
    from neve_train import devices

    axes = {"data": 1, "expert": 1, "context": 1, "model": 1}
    return devices.base_trainer_config(axes, explicit_axes=config.requires_explicit_mesh_axes)


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Returns the weights of a Hugging Face folder or adapter folder."""
    from safetensors.numpy import load_file

    found: dict[str, np.ndarray] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= load_file(file)
    return found


def logits(model: Any, config: Any, tokens: np.ndarray, segments: Any = None) -> np.ndarray:
    """Returns float32[row, position, vocab]; must be called on a mesh."""
    import haliax as hax
    import jax.numpy as jnp
    from haliax import Axis
    from haliax.partitioning import named_jit
    from levanter.layers.attention import AttentionMask
    from levanter.models.lm_model import split_activations
    from levanter.utils.tree_utils import inference_mode

    axes = (Axis("batch", len(tokens)), config.max_Pos.resize(SEQ_LEN))

    @named_jit(axis_resources=mesh_of(config).compute_axis_mapping)
    def run(model: Any) -> Any:
        mask = AttentionMask.causal()
        if segments is not None:
            mask = mask.with_segment_ids(hax.named(jnp.asarray(segments), axes))
        hidden, _ = split_activations(model.activations(hax.named(jnp.asarray(tokens), axes), mask))
        values = hax.dot(hidden, model.get_lm_head(), axis=model.Embed)
        return values.rearrange((*axes, model.Vocab)).array

    return np.asarray(run(inference_mode(model, True)), np.float32)


def conversations() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """Returns three conversations in one row with its segments, and in rows of their own."""
    lengths = (40, 50, 30)
    starts = np.cumsum((0, *lengths))
    rng = np.random.default_rng(1)
    together = np.zeros((1, SEQ_LEN), np.int32)
    together[0, : starts[-1]] = rng.integers(1, 300, starts[-1])
    segments = np.full((1, SEQ_LEN), -1, np.int32)
    apart = np.zeros((3, SEQ_LEN), np.int32)
    places = [(int(start), length) for start, length in zip(starts[:-1], lengths, strict=True)]
    for index, (start, length) in enumerate(places):
        segments[0, start : start + length] = index
        apart[index, :length] = together[0, start : start + length]
    return together, segments, apart, places
