"""A program of the training tests: one small Snowball, trained in a process of its own.

python toy_run.py FOLDER MODE prints one JSON line.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

NUM_TRAIN_STEPS = 8
SEQ_LEN = 128


def make_inputs(folder: Path) -> None:
    """Writes tokenizer, base model, token caches, plan and conversations."""
    import numpy as np
    import zstandard
    from neve_chat.cache import TreeCacheWriter

    from steps.make_snowball_base import MakeSnowballBaseConfig, make_snowball_base
    from steps.make_tokenizer import MakeTokenizerConfig, make_tokenizer

    (folder / "corpus").mkdir(parents=True)
    rows = [
        {
            "id": str(number),
            "messages": [
                {"role": "user", "content": f"count to {number}"},
                {"role": "assistant", "content": " ".join(map(str, range(number)))},
            ],
        }
        for number in range(3, 20)
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    (folder / "corpus" / "a.jsonl").write_text(lines)
    (folder / "conversations").mkdir()
    (folder / "conversations" / "shard-00000.jsonl.zst").write_bytes(
        zstandard.compress(lines.encode())
    )
    shape = MakeTokenizerConfig(
        corpus=str(folder / "corpus"),
        vocab_size=512,
        hidden_size=64,
        num_layers=2,
        head_dim=16,
        num_experts=4,
        expert_width=64,
        shared_width=64,
        max_position_embeddings=256,
        sliding_window=64,
    )
    make_tokenizer(shape, str(folder / "tokenizer"))
    make_snowball_base(
        MakeSnowballBaseConfig(input=str(folder / "tokenizer")), str(folder / "base")
    )
    rng = np.random.default_rng(0)
    for split, num_rows in (("train", 21), ("validation", 5)):
        with TreeCacheWriter(
            str(folder / "cache" / split), scratch=folder / "scratch", preprocessor_metadata={}
        ) as writer:
            for _ in range(num_rows):
                positions = np.arange(int(rng.integers(20, 150)))  # some are too long, and dropped
                ids = (positions % 40 + int(rng.integers(0, 40))).astype(np.int32)
                writer.append(ids, (positions >= 5).astype(np.int32))
    (folder / "plan").mkdir()
    plan = {"num_train_steps": NUM_TRAIN_STEPS, "long_conversations": "drop"}
    (folder / "plan" / "plan.json").write_text(json.dumps(plan))


def train_config(folder: Path, *, batch_size: int = 4, **execution: Any) -> Any:
    """Returns the TrainSftConfig of the toy."""
    from neve_chat.templates import load_template

    from steps.train_sft import ExecutionConfig, OptimizerConfig, TrainSftConfig

    return TrainSftConfig(
        model=str(folder / "base"),
        tokenizer=str(folder / "tokenizer"),
        names=("a",),
        caches=(str(folder / "cache"),),
        weights=(1.0,),
        plan=str(folder / "plan"),
        template_text=load_template("marin").text,
        seq_len=SEQ_LEN,
        batch_size=batch_size,
        optimizer=OptimizerConfig(learning_rate=3e-3),
        execution=ExecutionConfig(
            checkpoint_every_train_steps=3,
            eval_every_train_steps=4,
            compilation_cache_dir=str(folder / "compiled"),
            **execution,
        ),
    )


def whole(folder: Path) -> Any:
    """Trains without interruption."""
    from steps.train_sft import train_sft

    return train_sft(train_config(folder), str(folder / "whole"))


def killed(folder: Path) -> Any:
    """Trains until train step 5 is done and the checkpoint of step 3 is committed, then dies."""
    from neve_train.training import Callbacks, train

    marker = folder / "stopped" / "checkpoints" / "step-2" / "metadata.json"

    def die_in_time(step: int, **_values: float) -> None:
        if step == 5:
            while not marker.exists():
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    return train(train_config(folder), str(folder / "stopped"), Callbacks(on_metrics=die_in_time))


def resumed(folder: Path) -> Any:
    """Goes on after the kill, then with a torn newest checkpoint, then with only torn ones."""
    from neve_train.errors import CheckpointError
    from neve_train.training import Callbacks, train

    output_path = folder / "stopped"
    result = {"after_kill": train(train_config(folder), str(output_path))}
    result["rows"] = [
        json.loads(row) for row in (output_path / "loss.jsonl").read_text().splitlines()
    ]
    messages: list[str] = []
    shutil.rmtree(output_path / "checkpoints" / "step-7" / "d")
    result["after_tear"] = train(
        train_config(folder), str(output_path), Callbacks(on_message=messages.append)
    )
    result["messages"] = messages
    result["is_whole_again"] = (output_path / "checkpoints" / "step-7" / "d").is_dir()
    for checkpoint in (output_path / "checkpoints").iterdir():
        (checkpoint / "manifest.ocdbt").unlink()
    before = sorted(str(path) for path in output_path.rglob("*"))
    try:
        train(train_config(folder), str(output_path))
    except CheckpointError as error:
        result["refusal"] = str(error)
    result["is_untouched"] = before == sorted(str(path) for path in output_path.rglob("*"))
    return result


def exported(folder: Path) -> Any:
    """Trains on context 2 x expert 4, exports, and compares logits of folder and checkpoint."""
    import haliax as hax
    import jax
    import jax.numpy as jnp
    import numpy as np
    from haliax import Axis
    from haliax.partitioning import named_jit
    from neve_train import devices
    from neve_train.export import load_checkpoint_model, load_hf_model
    from neve_train.model import read_model_config

    from steps.export_hf import ExportHfConfig, export_hf
    from steps.train_sft import train_sft

    mesh = (("context", 2), ("expert", 4))
    config = train_config(folder, mesh=mesh)
    trained = train_sft(config, str(folder / "meshed"))
    hf = str(folder / "hf")
    export = ExportHfConfig(
        checkpoint=str(folder / "meshed"),
        model=str(folder / "tokenizer"),
        tokenizer=str(folder / "tokenizer"),
        template_text=config.template_text,
        mesh=mesh,
    )
    result = export_hf(export, hf)
    trainer_config = devices.base_trainer_config({"data": 1, "model": 1, **dict(mesh)})
    model_config = read_model_config(hf)
    tokens = np.arange(4 * SEQ_LEN, dtype=np.int32).reshape(4, SEQ_LEN) % 300
    with devices.on_mesh(trainer_config):
        axes = (Axis("batch", 4), model_config.max_Pos.resize(SEQ_LEN))

        @named_jit(axis_resources=trainer_config.compute_axis_mapping)
        def logits(model: Any) -> Any:
            hidden = model.activations(hax.named(jnp.asarray(tokens), axes))
            return hax.dot(hidden, model.get_lm_head(), axis=model.Embed).array

        saved, _ = load_checkpoint_model(str(folder / "meshed"), model_config, print)
        saved = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), saved)
        loaded = load_hf_model(model_config, hf, hf, None)
        first, second = np.asarray(logits(saved)), np.asarray(logits(loaded))
        spread = float(np.std(first.astype(np.float32)))
    return {
        "trained": trained,
        "export": result,
        "is_equal": bool((first.view(np.uint16) == second.view(np.uint16)).all()),
        "spread": spread,
        "dtype": str(first.dtype),
        "num_devices": jax.device_count(),
        "capacity": loaded.transformer.blocks[0].mlp.expert_mlp.capacity_factor,
    }


def sampled(folder: Path) -> Any:
    """Answers prompts with the base model as both models, then with a forced end id."""
    from neve_chat.templates import load_template
    from neve_train.generation import generate
    from neve_train.tokenizer_files import (
        end_token_ids,
        write_generation_files,
        write_tokenizer_files,
    )

    from steps.generate_samples import GenerateSamplesConfig, generate_samples

    template, source = load_template("marin").text, str(folder / "tokenizer")
    after = folder / "base-exported"
    shutil.copytree(folder / "base", after)
    end_ids = end_token_ids(source, source, template)
    write_tokenizer_files(source, str(after), template)
    write_generation_files(source, str(after), source, end_ids, "float32")
    common = {
        "before": str(folder / "base"),
        "after": str(after),
        "conversations": str(folder / "conversations"),
        "template_text": template,
        "num_samples": 3,
        "max_new_tokens": 12,
    }
    plain = generate_samples(GenerateSamplesConfig(**common), str(folder / "samples"))
    prompts = [[1, 2, 3], [4, 5]]
    base = str(folder / "base")
    first = generate(base, base, base, prompts, end_ids, 12)
    forced_end = first[0].ids[0]
    short = generate(base, base, base, prompts, [forced_end], 12)
    return {
        "plain": plain,
        "forced": {"num_stopped": sum(answer.has_stopped for answer in short)},
        "forced_ids": [list(answer.ids) for answer in short],
        "first_ids": [list(answer.ids) for answer in first],
    }


def packed(folder: Path) -> Any:
    """Compares hidden states of conversations in one row and in rows of their own, then trains."""
    import dataclasses

    import haliax as hax
    import jax.numpy as jnp
    import numpy as np
    from haliax import Axis
    from haliax.partitioning import named_jit
    from levanter.data.packing import pack_documents
    from levanter.layers.attention import AttentionMask
    from neve_train import devices
    from neve_train.export import load_hf_model
    from neve_train.model import read_model_config

    from steps.mix_datasets import MixDatasetsConfig, _count_rows
    from steps.train_sft import train_sft

    lengths = (40, 50, 30)
    starts = np.cumsum((0, *lengths))
    rng = np.random.default_rng(1)
    together = np.zeros((1, SEQ_LEN), np.int32)
    together[0, : starts[-1]] = rng.integers(1, 300, starts[-1])
    segments = np.full((1, SEQ_LEN), -1, np.int32)
    apart = np.zeros((3, SEQ_LEN), np.int32)
    for index, (start, length) in enumerate(zip(starts, lengths, strict=False)):
        segments[0, start : start + length] = index
        apart[index, :length] = together[0, start : start + length]
    base = str(folder / "base")
    trainer_config = devices.base_trainer_config({"data": 1, "expert": 1, "context": 1, "model": 1})

    def hidden(tokens: Any, ids: Any, uses_segments: bool) -> Any:
        config = read_model_config(base, uses_segments=uses_segments)
        axes = (Axis("batch", len(tokens)), config.max_Pos.resize(SEQ_LEN))

        @named_jit(axis_resources=trainer_config.compute_axis_mapping)
        def run(model: Any) -> Any:
            mask = AttentionMask.causal()
            if ids is not None:
                mask = mask.with_segment_ids(hax.named(jnp.asarray(ids), axes))
            return model.activations(hax.named(jnp.asarray(tokens), axes), mask).array

        return np.asarray(run(load_hf_model(config, base, base, None)), np.float32)

    with devices.on_mesh(trainer_config):
        alone = hidden(apart, None, False)
        in_one_row = hidden(together, segments, True)
        unmasked = hidden(together, segments, False)

    def difference(row: Any) -> float:
        pieces = [
            np.abs(row[0, start : start + length] - alone[index, :length]).max()
            for index, (start, length) in enumerate(zip(starts, lengths, strict=False))
        ]
        return float(max(pieces))

    counts = []
    for policy, slices in (("drop", "drop"), ("truncate", "left")):
        many = rng.integers(1, 160, 400)
        mixture = MixDatasetsConfig(
            names=("a",), caches=("x",), weights=(1.0,), seq_len=SEQ_LEN, batch_size=1,
            packing="packed", long_conversations=policy, model_config="x",
        )  # fmt: skip
        used = many <= SEQ_LEN if policy == "drop" else np.ones_like(many, bool)
        packs = pack_documents(many, SEQ_LEN, 64, slices)
        counts.append((_count_rows(many, used, mixture), len(packs)))
    config = dataclasses.replace(train_config(folder), packing="packed")
    return {
        "packed": difference(in_one_row),
        "unmasked": difference(unmasked),
        "counts": counts,
        "trained": train_sft(config, str(folder / "packed")),
    }


MODES = {
    "packed": packed,
    "whole": whole,
    "killed": killed,
    "resumed": resumed,
    "exported": exported,
    "sampled": sampled,
}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    sys.stdout.write("\n" + json.dumps(MODES[sys.argv[2]](root)) + "\n")
