"""A program of the export tests, in a process of its own: python export_run.py FOLDER MODE."""

import dataclasses
import json
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.neve_train.results import tell
from tests.neve_train.toy_run import SEQ_LEN, train_config

MESH = (("context", 2), ("expert", 4))


def meshed(folder: Path) -> Any:
    """Trains the toy on context 2 x expert 4, exports it, and compares the folder in three ways."""
    from neve_chat.templates import load_template
    from neve_train.errors import TrainInputError

    from steps.export_hf import ExportHfConfig, export_hf
    from steps.train_sft import train_sft
    from steps.verify_hf import VerifyHfConfig, verify_hf

    config = dataclasses.replace(train_config(folder, mesh=MESH), max_dropped_fraction=0.1)
    trained = train_sft(config, str(folder / "meshed"))
    model = folder / "model-with-defaults"
    shutil.copytree(folder / "tokenizer", model)
    settings = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": [7]}
    (model / "generation_config.json").write_text(json.dumps(settings))
    hf = folder / "hf"
    export = ExportHfConfig(
        checkpoint=str(folder / "meshed"),
        model=str(model),
        tokenizer=str(folder / "tokenizer"),
        template_text=load_template("marin").text,
        max_shard_bytes=100_000,
    )
    result = export_hf(export, str(hf))
    verify = VerifyHfConfig(folder=str(hf), checkpoint=str(folder / "meshed"))
    verified = verify_hf(verify, str(folder / "verified"))
    facts = _compare(folder / "meshed", hf, dict(MESH))
    damaged = folder / "damaged"
    shutil.copytree(hf, damaged)
    shard = max(damaged.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    refusal = ""
    try:
        verify_hf(VerifyHfConfig(folder=str(damaged), checkpoint=str(folder / "meshed")), "")
    except TrainInputError as error:
        refusal = str(error)
    return {
        "trained": trained,
        "export": result,
        "verified": verified,
        "refusal": refusal,
        **facts,
    }


def qwen3(folder: Path) -> Any:
    """Saves a small Qwen3 natively, exports it, and compares the folder in the same ways."""
    from neve_chat.templates import load_template

    from steps.export_hf import ExportHfConfig, export_hf
    from steps.verify_hf import VerifyHfConfig, verify_hf

    model = folder / "export-qwen3-model"
    shutil.copytree(folder / "tokenizer", model)
    base = json.loads((model / "config.json").read_text())
    values = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": base["vocab_size"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    (model / "config.json").write_text(json.dumps(values))
    _save(model, folder / "export-qwen3")
    hf = folder / "export-qwen3-hf"
    export = ExportHfConfig(
        checkpoint=str(folder / "export-qwen3"),
        model=str(model),
        tokenizer=str(folder / "tokenizer"),
        template_text=load_template("marin").text,
    )
    result = export_hf(export, str(hf))
    verify = VerifyHfConfig(folder=str(hf), checkpoint=str(folder / "export-qwen3"))
    return {
        "export": result,
        "verified": verify_hf(verify, str(folder / "export-qwen3-verified")),
        **_compare(folder / "export-qwen3", hf, {}),
    }


def large(folder: Path) -> Any:
    """Exports a model of some 100 MB, and tells by how much the process grew."""
    from neve_train.export import checkpoint_tensors
    from neve_train.hf_folder import write_weights

    model = folder / "large-model"
    shutil.copytree(folder / "tokenizer", model, dirs_exist_ok=True)
    values = json.loads((model / "config.json").read_text())
    values |= {
        "num_hidden_layers": 12,
        "moe_intermediate_size": 2048,
        "hidden_size": 64,
        "num_experts": 4,
    }
    (model / "config.json").write_text(json.dumps(values))
    if not (folder / "large").exists():
        _save(model, folder / "large")
        return {}
    tensors, _ = checkpoint_tensors(str(folder / "large"), str(model), print)
    first = next(iter(tensors))
    tensors[first]()  # what reading needs once is not of interest
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shapes = {name: shape.cast("bfloat16") for name, shape in tensors.shapes.items()}
    write_weights(tensors, shapes, str(folder / "large-hf"))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "grown_bytes": (after - before) << 10,
        "checkpoint_bytes": sum(shape.num_bytes for shape in tensors.shapes.values()),
        "largest_bytes": max(shape.num_bytes for shape in tensors.shapes.values()),
        "written_bytes": (folder / "large-hf" / "model.safetensors").stat().st_size,
    }


def sampled(folder: Path) -> Any:
    """Answers prompts with the base model as both models, then with a forced end id."""
    from neve_chat.templates import load_template
    from neve_train.generation import generate
    from neve_train.tokenizer_files import (
        end_token_ids,
        write_config_files,
        write_tokenizer_files,
    )

    from steps.generate_samples import GenerateSamplesConfig, generate_samples

    template, source = load_template("marin").text, str(folder / "tokenizer")
    after = folder / "base-exported"
    shutil.copytree(folder / "base", after)
    end_ids = end_token_ids(source, source, template)
    write_tokenizer_files(source, str(after), template)
    write_config_files(source, str(after), source, end_ids, "float32")
    config = GenerateSamplesConfig(
        before=str(folder / "base"),
        after=str(after),
        conversations=str(folder / "conversations"),
        template_text="",
        num_samples=3,
        max_new_tokens=12,
    )
    plain = generate_samples(config, str(folder / "samples"))
    prompts = [[1, 2, 3], [4, 5]]
    base = str(folder / "base")
    first = generate(base, base, base, prompts, end_ids, 12)
    forced_end = first[0].ids[0]
    short = generate(base, base, base, prompts, [forced_end], 12)
    second_end = first[1].ids[2]
    either = generate(base, base, base, prompts, [forced_end, second_end], 12)
    _save(folder / "tokenizer", folder / "natively", weights=folder / "base")
    native = generate(str(folder / "natively"), base, base, prompts, end_ids, 12)
    return {
        "plain": plain,
        "forced": {"num_stopped": sum(answer.has_stopped for answer in short)},
        "forced_ids": [list(answer.ids) for answer in short],
        "either_ids": [list(answer.ids) for answer in either],
        "either_stopped": [answer.has_stopped for answer in either],
        "ends": [forced_end, second_end],
        "first_ids": [list(answer.ids) for answer in first],
        "native_ids": [list(answer.ids) for answer in native],
    }


def _save(model_path: Path, output: Path, weights: Path | None = None) -> None:
    """Writes a native checkpoint of fresh or given weights."""
    import haliax as hax
    import jax
    import jax.random as jrandom
    from haliax import Axis
    from levanter.checkpoint import save_checkpoint
    from neve_train import devices
    from neve_train.export import load_hf_model
    from neve_train.families import read_model_config

    devices.initialize()
    config = read_model_config(str(model_path))
    axes = {"data": jax.device_count(), "expert": 1, "context": 1, "model": 1}
    explicit = config.requires_explicit_mesh_axes
    with devices.on_mesh(devices.base_trainer_config(axes, explicit_axes=explicit)):
        if weights:
            model = load_hf_model(config, str(weights), str(weights), None)
        else:
            Vocab = Axis("vocab", config.vocab_size)
            model = hax.named_jit(lambda key: config.build(Vocab, key=key))(jrandom.PRNGKey(1))
        save_checkpoint(
            {"model": model}, 0, str(output / "checkpoints" / "step-0"), is_temporary=False
        )


def _compare(checkpoint: Path, hf: Path, mesh: dict[str, int]) -> dict[str, Any]:
    """Compares a folder with what Levanter itself writes, and its logits with the checkpoint's."""
    import haliax as hax
    import jax
    import jax.numpy as jnp
    import numpy as np
    from haliax import Axis
    from haliax.partitioning import named_jit
    from levanter.layers.attention import AttentionMask
    from levanter.tokenizers import load_tokenizer
    from neve_train import devices
    from neve_train.export import load_checkpoint_model, load_hf_model
    from neve_train.families import hf_converter, read_model_config
    from safetensors.numpy import load_file

    config = read_model_config(str(hf))
    axes = {"data": -1, "model": 1, "expert": 1, "context": 1, **mesh}
    axes["data"] = jax.device_count() // -int(np.prod(list(axes.values())))
    trainer_config = devices.base_trainer_config(
        axes, explicit_axes=config.requires_explicit_mesh_axes
    )
    tokens = np.random.default_rng(0).integers(0, 300, (4, SEQ_LEN)).astype(np.int32)
    theirs = hf.with_name(hf.name + "-levanter")
    with devices.on_mesh(trainer_config):
        named = (Axis("batch", 4), config.max_Pos.resize(SEQ_LEN))

        @named_jit(axis_resources=trainer_config.compute_axis_mapping)
        def logits(model: Any) -> Any:
            hidden = model.activations(
                hax.named(jnp.asarray(tokens), named), AttentionMask.causal()
            )
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            return hax.dot(hidden, model.get_lm_head(), axis=model.Embed).array

        saved, _ = load_checkpoint_model(str(checkpoint), config, print)
        converter = hf_converter(config, load_tokenizer(str(hf)), str(hf))
        converter.save_pretrained(
            saved, str(theirs), save_reference_code=False, save_tokenizer=False, dtype=jnp.bfloat16
        )
        saved = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), saved)
        loaded = load_hf_model(config, str(hf), str(hf), None)
        first, second = np.asarray(logits(saved)), np.asarray(logits(loaded))

    def tensors(folder: Path) -> dict[str, Any]:
        return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}

    ours, levanters = tensors(hf), tensors(theirs)
    different = [
        name
        for name in sorted({*ours, *levanters})
        if name not in ours
        or name not in levanters
        or ours[name].dtype != levanters[name].dtype
        or ours[name].tobytes() != levanters[name].tobytes()
    ]
    single = hf / "model.safetensors"
    return {
        "is_equal": bool((first.view(np.uint16) == second.view(np.uint16)).all()),
        "spread": float(np.std(first.astype(np.float32))),
        "dtype": str(first.dtype),
        "num_devices": jax.device_count(),
        "num_tensors": len(ours),
        "different": different,
        "same_file": single.exists()
        and single.read_bytes() == (theirs / "model.safetensors").read_bytes(),
    }


MODES = {"meshed": meshed, "qwen3": qwen3, "large": large, "sampled": sampled}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    tell(MODES[sys.argv[2]](root))
