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

from tests.neve_train.results import tell

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
    for packing in ("separate", "packed"):
        mix(folder, f"plan-{packing}", packing=packing)


def mix(folder: Path, plan: str, **changes: Any) -> Any:
    """Plans the toy's rows into a folder of that name; returns plan.json."""
    from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets

    values: dict[str, Any] = {
        "datasets": (MixedDataset(name="a", cache=str(folder / "cache")),),
        "seq_len": SEQ_LEN,
        "batch_size": 4,
        "num_train_steps": NUM_TRAIN_STEPS,
        "model_config": str(folder / "tokenizer"),
    }
    return mix_datasets(MixDatasetsConfig(**(values | changes)), str(folder / plan))


def train_config(folder: Path, *, plan: str = "plan-separate", **execution: Any) -> Any:
    """Returns the TrainSftConfig of the toy."""
    from steps.train_sft import ExecutionConfig, OptimizerConfig, TrainSftConfig

    return TrainSftConfig(
        model=str(folder / "base"),
        tokenizer=str(folder / "tokenizer"),
        plan=str(folder / plan),
        caches=(str(folder / "cache"),),
        seq_len=SEQ_LEN,
        batch_size=4,
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
    result: dict[str, Any] = {"after_kill": train(train_config(folder), str(output_path))}
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


def packed(folder: Path) -> Any:
    """Compares hidden states of conversations in one row and in rows of their own, then trains."""
    import haliax as hax
    import jax.numpy as jnp
    import numpy as np
    from haliax import Axis
    from haliax.partitioning import named_jit
    from levanter.layers.attention import AttentionMask
    from neve_train import devices
    from neve_train.export import load_hf_model
    from neve_train.families import read_model_config

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

    return {
        "packed": difference(in_one_row),
        "unmasked": difference(unmasked),
        "trained": train_sft(train_config(folder, plan="plan-packed"), str(folder / "packed")),
    }


def rows(folder: Path) -> Any:
    """Compares what training reads with references: the caches, Levanter's own rows, a late start."""
    import jax
    import numpy as np
    from haliax import Axis
    from jax.sharding import Mesh
    from levanter.data.loader import DataLoader
    from levanter.data.text.datasets import (
        DatasetComponent,
        LmDataConfig,
        NamedLmDataset,
        UrlDatasetSourceConfig,
    )
    from levanter.data.text.formats import ChatLmDatasetFormat
    from neve_chat.templates import load_template
    from neve_train.data import read_data, read_plan

    Pos = Axis("position", SEQ_LEN)
    data = {
        packing: read_data(config, read_plan(config), Pos)
        for packing in ("separate", "packed")
        for config in [train_config(folder, plan=f"plan-{packing}")]
    }
    form = ChatLmDatasetFormat(
        chat_template=load_template("marin").text, pack=1, slice_strategy="drop"
    )
    theirs = LmDataConfig(
        tokenizer=str(folder / "tokenizer"),
        cache_dir=None,
        auto_build_caches=False,
        shuffle=False,
        components={
            "a": DatasetComponent(
                source=UrlDatasetSourceConfig(),
                cache_dir=str(folder / "cache"),
                format=form,
                pack=1,
            )
        },
        train_weights={"a": 1.0},
    )
    cache = theirs.build_caches("train")["a"]
    stored = cache.get_batch_sync(range(len(cache)))
    unnamed = theirs.train_sets(Pos, key=jax.random.PRNGKey(0))["a"]
    levanters = NamedLmDataset(unnamed, Pos).as_sync_dataset()
    used = [index for index, row in enumerate(stored) if len(row["input_ids"]) <= SEQ_LEN]

    def leaves(example: Any) -> list[Any]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(example)]

    def expected(row: Any) -> list[Any]:
        ids, weights, segments = [], [], []
        for number, segment in enumerate(row):
            record = stored[int(segment["row"])]
            mask = record["assistant_masks"].tolist()
            ids += record["input_ids"].tolist()
            weights += [*map(float, mask[1:]), 0.0]
            segments += [number] * len(mask)
        pad = SEQ_LEN - len(ids)
        segments += [-1] * pad
        return [ids + [0] * pad, weights + [0.0] * pad, segments, segments]

    result: dict[str, Any] = {}
    for packing, planned in data.items():
        dataset = planned.train.as_sync_dataset()
        plan = planned.train.plan
        examples = dataset.get_batch(range(plan.num_rows))
        equal = [
            [leaf.tolist() for leaf in leaves(example)] == expected(plan.row(index))
            for index, example in enumerate(examples)
        ]
        loader = DataLoader(
            planned.train,
            4,
            mesh=Mesh(np.array(jax.devices()[:1]), ("data",)),
            axis_resources={"batch": "data"},
        )
        batches = [leaves(batch)[0].tolist() for batch in loader]
        late = [leaves(batch)[0].tolist() for batch in loader.iter_from_step(5)]
        ids = [leaves(example)[0].tolist() for example in examples]
        result[packing] = {
            "num_rows": len(equal),
            "equal": sum(equal),
            "num_segments": len(plan.segments),
            "in_order": [row for batch in batches for row in batch] == ids,
            "late_start": late == batches[5:] and len(late) == NUM_TRAIN_STEPS - 5,
            "held_out": [
                [names, held.plan.num_rows, len(held.plan.segments)]
                for held, names in planned.validation
            ],
        }
    planned = data["separate"].train
    same = []
    for index in range(planned.plan.num_rows):
        (segment,) = planned.plan.row(index).tolist()
        ours = planned.as_sync_dataset()[index]
        their = levanters.get_batch([used.index(segment[1])])[0]
        first, second = leaves(ours), leaves(their)
        # Levanter numbers segments through the data set; only which positions share one matters.
        second[2:] = [np.minimum(leaf, 0) for leaf in second[2:]]
        same.append(
            jax.tree.structure(ours) == jax.tree.structure(their)
            and all(
                a.dtype == b.dtype and np.array_equal(a, b)
                for a, b in zip(first, second, strict=True)
            )
        )
    result["positions"] = _positions(folder)
    result["same_as_levanter"] = sum(same)
    result["num_used"] = len(used)
    return result


def _positions(folder: Path) -> dict[str, Any]:
    """Case 055: 64 rows, 2 epochs of batches of 8, stopped after 3, 8, 9 and 15 of 16 train steps."""
    import dataclasses

    import jax
    import numpy as np
    from haliax import Axis
    from jax.sharding import Mesh
    from levanter.data.loader import DataLoader
    from neve_chat.cache import TreeCacheWriter
    from neve_train.data import read_data, read_plan

    from steps.mix_datasets import MixedDataset

    cache = folder / "numbered"
    with TreeCacheWriter(
        str(cache / "train"), scratch=folder / "scratch", preprocessor_metadata={}
    ) as writer:
        for number in range(64):
            writer.append(np.full(4, number, np.int32), np.ones(4, np.int32))
    plan = mix(
        folder,
        "plan-numbered",
        datasets=(MixedDataset(name="a", cache=str(cache)),),
        batch_size=8,
        num_train_steps=None,
        num_train_epochs=2,
        data_seed=1,
    )
    config = train_config(folder, plan="plan-numbered")
    config = dataclasses.replace(config, caches=(str(cache),), batch_size=8)
    rows = read_data(config, read_plan(config), Axis("position", SEQ_LEN)).train
    loader = DataLoader(
        rows, 8, mesh=Mesh(np.array(jax.devices()[:1]), ("data",)), axis_resources={"batch": "data"}
    )

    def numbers(batches: Any) -> list[list[int]]:
        return [np.asarray(batch.tokens.array)[:, 0].tolist() for batch in batches]

    whole = numbers(loader)
    return {
        "num_train_steps": plan["num_train_steps"],
        "whole": whole,
        "goes_on": [numbers(loader.iter_from_step(stop)) == whole[stop:] for stop in (3, 8, 9, 15)],
    }


MODES = {
    "packed": packed,
    "rows": rows,
    "whole": whole,
    "killed": killed,
    "resumed": resumed,
}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    tell(MODES[sys.argv[2]](root))
