"""A program of the tests of families and adapters: small models of other kinds than Snowball.

python family_run.py FOLDER MODE prints one JSON line. FOLDER holds what toy_run.make_inputs writes.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.neve_train import reference_dense
from tests.neve_train.dense_models import (
    COMMON,
    CONFIGS,
    conversations,
    logits,
    make_model,
    mesh_of,
    tensors,
)
from tests.neve_train.results import tell
from tests.neve_train.toy_run import SEQ_LEN, train_config

REFUSED: list[dict[str, Any]] = [
    {"model_type": "llama", "attention_bias": True},
    {"model_type": "llama", "head_dim": 32},
    {
        "model_type": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 64,
        "max_window_layers": 0,
    },
    {"model_type": "mistral", "sliding_window": 64},
    {"model_type": "qwen2", "head_dim": 32},
    {"model_type": "qwen3", "attention_bias": True},
    {"model_type": "qwen3_moe", "attention_bias": True},
    {
        "model_type": "olmo3",
        "rope_theta": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        },
    },
    {"model_type": "llama", "rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
]
"""What Levanter's configs would drop without a word, or compute otherwise."""


def round_trips(folder: Path) -> Any:
    """Writes and reads a model of each family, and packs conversations with it."""
    from levanter.tokenizers import load_tokenizer
    from neve_train import devices
    from neve_train.export import load_hf_model
    from neve_train.families import hf_converter, read_model_config

    together, segments, apart, places = conversations()
    results: dict[str, Any] = {}
    for family in CONFIGS:
        path = make_model(folder, family, folder / "families" / family)
        config = read_model_config(str(path))
        again = folder / "families" / f"{family}-again"
        with devices.on_mesh(mesh_of(config)):
            model = load_hf_model(config, str(path), str(path), None)
            converter = hf_converter(config, load_tokenizer(str(path)), str(path))
            converter.save_pretrained(model, str(again), save_tokenizer=False)
            alone = logits(model, config, apart)
            packed = logits(model, config, together, segments)
            unmasked = logits(model, config, together)
        first, second = tensors(path), tensors(again)

        def difference(row: np.ndarray, alone: np.ndarray = alone) -> float:
            return max(
                float(np.abs(row[0, start : start + length] - alone[index, :length]).max())
                for index, (start, length) in enumerate(places)
            )

        results[family] = {
            "is_equal": first.keys() == second.keys()
            and all((first[name] == second[name]).all() for name in first),
            "num_tensors": len(first),
            "packed": difference(packed),
            "unmasked": difference(unmasked),
            "spread": float(alone.std()),
        }
        if family in ("llama", "mistral", "olmo3", "qwen2", "qwen3"):
            error = np.abs(alone - reference_dense.logits(path, apart)).max()
            results[family]["reference_error"] = float(error)
    results["refusals"] = [refusal(folder, values) for values in REFUSED]
    by_kind = {**CONFIGS["olmo3"], "rope_theta": None, "rope_scaling": None}
    full = {**CONFIGS["olmo3"]["rope_scaling"], "rope_theta": 500_000.0}
    by_kind["rope_parameters"] = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        "full_attention": full,
    }
    path = folder / "families" / "olmo3-by-kind"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "olmo3", **COMMON, **by_kind}))
    flat = read_model_config(str(folder / "families" / "olmo3"))
    results["rope_by_kind_is_equal"] = read_model_config(str(path)) == flat
    return results


def refusal(folder: Path, values: dict[str, Any]) -> str:
    """Returns what is said of a config.json."""
    from neve_train.errors import TrainInputError
    from neve_train.families import read_model_config

    path = folder / "refused"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**COMMON, **values}))
    try:
        read_model_config(str(path))
    except TrainInputError as error:
        return str(error)
    return ""


class Stopped(Exception):
    """Ends a training in the middle."""


def stop_after(output_path: Path, checkpoint: int, step: int) -> Callable[..., None]:
    """Returns on_metrics that stops after `step`, once the checkpoint of train step `checkpoint` is there."""
    marker = output_path / "checkpoints" / f"step-{checkpoint - 1}" / "metadata.json"

    def on_metrics(done: int, **_values: float) -> None:
        if done == step:
            while not marker.exists():
                time.sleep(0.05)
            raise Stopped

    return on_metrics


def changed(config: Any, path: Path, **fields: Any) -> Any:
    """Returns the toy's training config with another model."""
    import dataclasses

    return dataclasses.replace(config, model=str(path), tokenizer=str(path), **fields)


def losses(output_path: Path) -> list[float | None]:
    """Returns the loss of each row of metrics."""
    rows = (output_path / "loss.jsonl").read_text().splitlines()
    return [row.get("loss") for row in map(json.loads, rows)]


def whole_and_stopped(config: Any, folder: Path, name: str) -> dict[str, Any]:
    """Trains once in one go and once with a stop in between."""
    from neve_train.training import Callbacks, train

    whole, stopped = folder / f"{name}-whole", folder / f"{name}-stopped"
    result = train(config, str(whole))
    with contextlib.suppress(Stopped):
        train(config, str(stopped), Callbacks(on_metrics=stop_after(stopped, 3, 5)))
    again = train(config, str(stopped))
    return {
        "trained": result,
        "resumed_from": again["resumed_from"],
        "losses": losses(whole),
        "losses_after_stop": losses(stopped),
    }


def trained(folder: Path) -> Any:
    """Trains, resumes, exports and reads again a Qwen3 and a Llama; chains a second training."""
    import jax
    import jax.numpy as jnp
    from neve_chat.templates import load_template
    from neve_train import devices
    from neve_train.export import load_checkpoint_model, load_hf_model
    from neve_train.families import read_model_config
    from neve_train.training import train

    from steps.export_hf import ExportHfConfig, export_hf

    results: dict[str, Any] = {}
    for family, plan in (("qwen3", "plan-packed"), ("llama", "plan-separate")):
        path = make_model(folder, family, folder / f"{family}-base")
        config = changed(train_config(folder, plan=plan), path, precision="p=f32,c=f32")
        result = whole_and_stopped(config, folder, family)
        hf = folder / f"{family}-hf"
        export_hf(
            ExportHfConfig(
                checkpoint=str(folder / f"{family}-whole"),
                model=str(path),
                tokenizer=str(path),
                template_text=load_template("marin").text,
            ),
            str(hf),
        )
        model_config = read_model_config(str(hf))
        tokens = np.arange(2 * SEQ_LEN, dtype=np.int32).reshape(2, SEQ_LEN) % 300
        with devices.on_mesh(mesh_of(model_config)):
            saved, step = load_checkpoint_model(
                str(folder / f"{family}-whole"), model_config, lambda text: None
            )
            saved = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), saved)
            first = logits(saved, model_config, tokens)
            second = logits(
                load_hf_model(model_config, str(hf), str(hf), None), model_config, tokens
            )
        result["is_equal"] = bool((first == second).all())
        result["spread"] = float(first.std())
        result["train_step"] = step
        result["config"] = json.loads((hf / "config.json").read_text())
        results[family] = result
    start = str(folder / "qwen3-whole")
    second_stage = changed(
        train_config(folder, plan="plan-packed"),
        folder / "qwen3-base",
        precision="p=f32,c=f32",
        initial_checkpoint=start,
    )
    results["second_stage"] = train(second_stage, str(folder / "qwen3-second"))
    return results


def adapted(folder: Path) -> Any:
    """Trains adapters of a Qwen3, stops and resumes, exports, and compares with numpy."""
    import jax
    from neve_chat.templates import load_template
    from neve_train import devices, lora
    from neve_train.config import LoraConfig
    from neve_train.errors import TrainInputError
    from neve_train.export import load_hf_model
    from neve_train.families import read_model_config
    from neve_train.training import train

    from steps.export_lora import ExportLoraConfig, export_lora

    path = make_model(folder, "qwen3", folder / "lora-base")
    adapter = LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj", "down_proj"))
    config = changed(train_config(folder), path, adapter=adapter, precision="p=f32,c=f32")
    result = whole_and_stopped(config, folder, "lora")
    hf = folder / "lora-hf"
    common = {
        "adapter": adapter,
        "checkpoint": str(folder / "lora-whole"),
        "model": str(path),
        "tokenizer": str(path),
        "template_text": load_template("marin").text,
        "repo": "organization/name",
        "revision": "0" * 40,
    }
    result["export"] = export_lora(ExportLoraConfig(**common, dtype="float32"), str(hf))
    base, merged, parts = tensors(path), tensors(hf), tensors(hf / "adapter")
    facts = json.loads((hf / "adapter" / "adapter_config.json").read_text())
    scale = facts["lora_alpha"] / facts["r"]
    worst, num_adapted = 0.0, 0
    for name, weight in base.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{stem}.lora_A.weight" in parts:
            a, b = parts[f"{stem}.lora_A.weight"], parts[f"{stem}.lora_B.weight"]
            worst = max(worst, float(np.abs(merged[name] - (weight + scale * b @ a)).max()))
            num_adapted += 1
            assert np.abs(b).max() > 0, name
        else:
            assert (merged[name] == weight).all(), name
    model_config = read_model_config(str(path))
    tokens = np.arange(2 * SEQ_LEN, dtype=np.int32).reshape(2, SEQ_LEN) % 300
    with devices.on_mesh(mesh_of(model_config)):
        plain = load_hf_model(model_config, str(path), str(path), None)
        apart = lora.adapted(plain, adapter, jax.random.PRNGKey(5))
        fresh = logits(apart, model_config, tokens)
        apart, _ = lora.load_adapters(apart, str(folder / "lora-whole"), lambda text: None)
        first = logits(apart, model_config, tokens)
        whole = load_hf_model(model_config, str(hf), str(hf), None)
        second = logits(whole, model_config, tokens)
        untouched = logits(plain, model_config, tokens)
        try:
            wrong = LoraConfig(target_modules=("q_proj", "qproj"))
            lora.adapted(plain, wrong, jax.random.PRNGKey(0))
        except TrainInputError as error:
            result["refusal"] = str(error)
    result |= {
        "facts": facts,
        "names": sorted(parts),
        "num_adapted": num_adapted,
        "merge_error": worst,
        "fresh_changes_nothing": bool((fresh == untouched).all()),
        "logit_error": float(np.abs(first - second).max()),
        "learned": float(np.abs(first - untouched).max()),
        "checkpoint_bytes": size_of(folder / "lora-whole" / "checkpoints" / "step-7"),
        "model_bytes": sum(weight.nbytes for weight in base.values()),
    }
    with_dropout = LoraConfig(rank=4, alpha=8.0, dropout=0.5, target_modules=("q_proj",))
    dropped = changed(config, path, adapter=with_dropout)
    result["with_dropout"] = train(dropped, str(folder / "lora-dropout"))["final_loss"]
    without = changed(
        config, path, adapter=LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj",))
    )
    result["without_dropout"] = train(without, str(folder / "lora-plain"))["final_loss"]
    return result


def size_of(path: Path) -> int:
    """Returns the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def model(folder: Path) -> Any:
    """Makes a small Qwen3 and nothing else."""
    return str(make_model(folder, "qwen3", folder / "model"))


def meshed(folder: Path) -> Any:
    """Trains the Qwen3 of `trained` on data 4 x model 2."""
    from neve_train.training import train

    mesh = (("data", 4), ("model", 2))
    config = train_config(folder, plan="plan-packed", mesh=mesh)
    base = folder / "qwen3-base"
    return train(changed(config, base, precision="p=f32,c=f32"), str(folder / "qwen3-meshed"))


MODES = {
    "adapted": adapted,
    "meshed": meshed,
    "model": model,
    "round_trips": round_trips,
    "trained": trained,
}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    tell(MODES[sys.argv[2]](root))
