"""One measured training in a process of its own: python -m benchmarks.train_run FOLDER MODE OUTPUT.

Modes: prepare (OUTPUT is the name of a size), packed, separate (neve), levanter (its own program on one
conversation per row), attention (the packed kernel against the reference). Every train step prints
`STEP <number> <seconds since the epoch> <seconds of the processors>`; at the end there are
`FLOPS <of a train step>` and `MEMORY <peak bytes of the device>` where they are known.
"""

import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from neve_train.program_end import end_program

from benchmarks.attention_run import compare_attention
from benchmarks.lengths import conversation_lengths

ANSWER_FRACTION = 0.5  # of each conversation, at its end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """A small Snowball, and how much it is trained."""

    seq_len: int
    """Positions per row; conversations are as much shorter than 32,768."""
    batch_size: int
    """Rows per train step."""
    num_train_steps: int
    """Train steps of a run."""
    save_every: int
    """Train steps between kept checkpoints."""
    num_conversations: int
    """Conversations in the cache."""
    model: dict[str, int]
    """Fields of MakeTokenizerConfig."""
    mesh: dict[str, int] = dataclasses.field(default_factory=dict)
    """Mesh axis -> devices; empty: one device."""

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.mesh.values())


SIZES = {
    "cpu": Size(
        seq_len=256,
        batch_size=8,
        num_train_steps=14,
        save_every=7,
        num_conversations=400,
        model={"vocab_size": 1024, "hidden_size": 128, "num_layers": 4, "shared_width": 128},
    ),
    # As deep as Snowball, and on a mesh of the recipe's kind: that is what takes long to compile.
    "restart": Size(
        seq_len=64,
        batch_size=8,
        num_train_steps=4,
        save_every=2,
        num_conversations=60,
        model={
            "vocab_size": 1024,
            "hidden_size": 64,
            "num_layers": 26,
            "head_dim": 16,
            "num_experts": 8,
            "expert_width": 64,
            "shared_width": 64,
        },
        mesh={"data": 1, "context": 2, "expert": 4},
    ),
    "self_check": Size(
        seq_len=128,
        batch_size=2,
        num_train_steps=6,
        save_every=3,
        num_conversations=60,
        model={"vocab_size": 512, "hidden_size": 64, "num_layers": 2, "head_dim": 16},
    ),
    # 1.0e9 parameters: 16 GB of weights, optimizer and gradients, and activations of 65,536 positions.
    "gpu": Size(
        seq_len=8192,
        batch_size=8,
        num_train_steps=12,
        save_every=6,
        num_conversations=400,
        model={
            "vocab_size": 32_000,
            "hidden_size": 2048,
            "num_layers": 8,
            "num_heads": 16,
            "num_kv_heads": 4,
            "head_dim": 128,
            "num_experts": 16,
            "num_experts_per_token": 4,
            "expert_width": 1024,
            "shared_width": 2048,
        },
    ),
}


def main() -> None:
    """Run the mode that the command line names."""
    folder, mode, output = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if mode == "prepare":
        prepare(folder, SIZES[output])
    elif mode == "attention":
        compare_attention()
    elif mode == "levanter":
        levanter(folder, output)
    else:
        neve(folder, mode, output)


def read_size(folder: Path) -> Size:
    """Return the size that the inputs were made with."""
    return Size(**json.loads((folder / "size.json").read_text()))


def prepare(folder: Path, size: Size) -> None:
    """Write tokenizer, base model, one token cache and both plans."""
    from neve_chat.cache import TreeCacheWriter

    from steps.make_snowball_base import MakeSnowballBaseConfig, make_snowball_base
    from steps.make_tokenizer import MakeTokenizerConfig, make_tokenizer

    (folder / "corpus").mkdir(parents=True)
    (folder / "size.json").write_text(json.dumps(dataclasses.asdict(size)))
    row = {"messages": [{"role": "user", "content": "count to 9"}]}
    (folder / "corpus" / "a.jsonl").write_text(json.dumps(row))
    shape = MakeTokenizerConfig(
        corpus=str(folder / "corpus"),
        max_position_embeddings=size.seq_len,
        sliding_window=size.seq_len // 16,
        **size.model,
    )
    make_tokenizer(shape, str(folder / "tokenizer"))
    make_snowball_base(
        MakeSnowballBaseConfig(input=str(folder / "tokenizer")), str(folder / "base")
    )
    scale = 32_768 // size.seq_len
    lengths = np.maximum(conversation_lengths(size.num_conversations) // scale, 2)
    np.save(folder / "lengths.npy", lengths)
    rng = np.random.default_rng(0)
    with TreeCacheWriter(
        str(folder / "cache" / "train"), scratch=folder / "scratch", preprocessor_metadata={}
    ) as writer:
        for length in lengths:
            start = round(int(length) * (1 - ANSWER_FRACTION))
            mask = (np.arange(length) >= start).astype(np.int32)
            writer.append(rng.integers(0, 256, length).astype(np.int32), mask)
    for packing in ("packed", "separate"):
        _plan(folder, size, packing)


def _plan(folder: Path, size: Size, packing: str) -> None:
    from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets

    config = MixDatasetsConfig(
        datasets=(MixedDataset(name="a", cache=str(folder / "cache")),),
        seq_len=size.seq_len,
        batch_size=size.batch_size,
        num_train_steps=size.num_train_steps,
        packing=packing,
        model_config=str(folder / "tokenizer"),
    )
    mix_datasets(config, str(folder / packing))


def neve(folder: Path, packing: str, output: str) -> None:
    """Train as a recipe does."""
    from neve_chat.row_plan import RowPlan
    from neve_train.families import read_model_config
    from neve_train.throughput import step_flops
    from neve_train.training import Callbacks, train

    from steps.train_sft import ExecutionConfig, OptimizerConfig, TrainSftConfig

    size = read_size(folder)
    config = TrainSftConfig(
        model=str(folder / "base"),
        tokenizer=str(folder / "tokenizer"),
        plan=str(folder / packing),
        caches=(str(folder / "cache"),),
        seq_len=size.seq_len,
        batch_size=size.batch_size,
        optimizer=OptimizerConfig(learning_rate=1e-4),
        capacity_factor=4.0,  # an untrained router drops, and that is not what is measured
        execution=ExecutionConfig(
            checkpoint_every_train_steps=size.save_every,
            mesh=tuple(size.mesh.items()),
        ),
    )
    train(config, output, Callbacks(on_progress=lambda done, total, **facts: _step(done)))
    plan = RowPlan.load(str(folder / packing / "train"))
    flops = step_flops(read_model_config(str(folder / "base")), plan, size.batch_size)
    _end(None if flops is None else float(flops.mean()))


def levanter(folder: Path, output: str) -> None:
    """Train with Levanter's own program: its loader, its Snowball, one conversation per row."""
    import jmp
    from levanter.checkpoint import CheckpointerConfig
    from levanter.data.text.datasets import DatasetComponent, LmDataConfig, UrlDatasetSourceConfig
    from levanter.data.text.formats import ChatLmDatasetFormat
    from levanter.distributed import DistributedConfig
    from levanter.main.train_lm import TrainLmConfig
    from levanter.main.train_lm import main as train_lm
    from levanter.models.snowball import GrugMoeHfConfig, SnowballConfig
    from levanter.optim.config import AdamConfig
    from levanter.tracker import NoopConfig
    from levanter.trainer import Trainer, TrainerConfig
    from levanter.utils.mesh import MeshConfig
    from neve_chat.templates import load_template
    from neve_train.throughput import snowball_flops

    size, original = read_size(folder), Trainer.train_step
    compute: dict[str, Any] = {"batch": ("replica_dcn", "data", "expert"), "vocab": "model"}
    if size.mesh.get("context", 1) > 1:
        compute["position"] = "context"

    def timed(trainer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        info = original(trainer, state, *args, **kwargs)
        _step(info.next_step)
        return info

    trainer_type: Any = Trainer
    trainer_type.train_step = timed
    hf_config = GrugMoeHfConfig(**json.loads((folder / "base" / "config.json").read_text()))
    model_config = SnowballConfig.from_hf_config(hf_config)
    train_lm(
        TrainLmConfig(
            data=LmDataConfig(
                tokenizer=str(folder / "tokenizer"),
                cache_dir=None,
                auto_build_caches=False,
                components={
                    "a": DatasetComponent(
                        source=UrlDatasetSourceConfig(),
                        cache_dir=str(folder / "cache"),
                        format=ChatLmDatasetFormat(
                            chat_template=load_template("marin").text, slice_strategy="drop"
                        ),
                        pack=1,
                    )
                },
                train_weights={"a": 1.0},
            ),
            trainer=TrainerConfig(
                id="run",
                mp=jmp.get_policy("p=f32,c=bfloat16"),
                train_batch_size=size.batch_size,
                num_train_steps=size.num_train_steps,
                tracker=NoopConfig(),
                require_accelerator=False,
                use_explicit_mesh_axes=True,
                mesh=MeshConfig(
                    axes={"replica": 1, "data": 1, "model": 1, "expert": 1, "context": 1}
                    | size.mesh,
                    compute_mapping=compute,
                    param_mapping={"embed": "data", "vocab": "model"},
                ),
                checkpointer=CheckpointerConfig(
                    base_path=output, save_interval=None, keep=[{"every": size.save_every}]
                ),
                distributed=DistributedConfig(initialize_jax_distributed=False),
            ),
            model=model_config,
            train_seq_len=size.seq_len,
            optimizer=AdamConfig(learning_rate=1e-4, weight_decay=0.0),
            initialize_from_hf=str(folder / "base"),
        )
    )
    lengths = np.load(folder / "lengths.npy")
    _end(float(snowball_flops(model_config, lengths).mean()) * size.batch_size)


def _end(flops: float | None) -> None:
    import jax

    memory = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    for name, value in (("FLOPS", flops), ("MEMORY", memory)):
        if value is not None:
            sys.stdout.write(f"{name} {value}\n")
    sys.stdout.flush()


def _step(done: int) -> None:
    sys.stdout.write(f"STEP {done} {time.time():.4f} {time.process_time():.4f}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    end_program()
