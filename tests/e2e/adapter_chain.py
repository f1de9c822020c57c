"""A recipe of the tests: adapters on a small Qwen3, then a training of the whole model after it.

TINY_QWEN3 is the model's folder; TINY_CHECKPOINT, if set, a native checkpoint that is the start instead.
"""

import dataclasses
import os

from experiments.sft.configs.snowball_tiny import CONVERSATIONS
from experiments.sft.launcher import run_sft_cli
from experiments.sft.sources import LocalModel, NativeCheckpoint, TrainedModel
from experiments.sft.spec import (
    ConversationSchema,
    DatasetSpec,
    LoraConfig,
    MeshSpec,
    OptimizerConfig,
    SFTSpec,
)

BASE = LocalModel(path=os.environ["TINY_QWEN3"], eos_token_ids=())
CHECKPOINT = os.environ.get("TINY_CHECKPOINT")

FIRST = SFTSpec(
    name="first",
    model=NativeCheckpoint(path=CHECKPOINT, model=BASE) if CHECKPOINT else BASE,
    datasets=(
        DatasetSpec(
            name="terminal-conversations",
            source=CONVERSATIONS,
            schema=ConversationSchema(conversation_column="conversations"),
            max_conversations=40,
        ),
    ),
    validation_fraction=0.1,
    adapter=LoraConfig(rank=4, alpha=8.0),
    optimizer=OptimizerConfig(learning_rate=1e-2),
    mesh=MeshSpec(data=-1, expert=1),
    seq_len=256,
    packing="packed",
    long_conversations="truncate",
    batch_size=4,
    precision="p=f32,c=f32",
    num_train_steps=4,
    num_samples=1,
    sample_max_tokens=8,
)

if __name__ == "__main__":
    second = dataclasses.replace(
        FIRST,
        name="second",
        model=TrainedModel(spec=FIRST),
        adapter=None,
        optimizer=OptimizerConfig(learning_rate=1e-3),
    )
    run_sft_cli(FIRST if CHECKPOINT else second, default_accelerator="1xcpu")
