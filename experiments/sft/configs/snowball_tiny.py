"""The whole path in minutes on a laptop's CPU: a small Snowball learns scripted terminal sessions.

    python -m experiments.sft.configs.snowball_tiny

The base model is drawn from a seed, the tokenizer is trained on the conversations that ship with this
module (experiments/sft/data); everything after that is what snowball_h100 does.
"""

from pathlib import Path

from experiments.sft.launcher import run_sft_cli
from experiments.sft.sources import LocalData, RandomSnowball
from experiments.sft.spec import (
    ConversationSchema,
    DatasetSpec,
    MeshSpec,
    OptimizerConfig,
    SFTSpec,
    TrackerSpec,
)
from steps.make_tokenizer import MakeTokenizerConfig

CONVERSATIONS = LocalData(
    path=str(Path(__file__).resolve().parents[1] / "data" / "terminal_conversations")
)

SPEC = SFTSpec(
    name="snowball-tiny-terminal-sft",
    model=RandomSnowball(
        corpus=CONVERSATIONS,
        corpus_name="terminal-conversations",
        shape=MakeTokenizerConfig(
            corpus=None, vocab_size=1024, num_layers=2, expert_width=64, shared_width=128
        ),
    ),
    chat_template="marin",
    datasets=(
        DatasetSpec(
            name="terminal-conversations",
            source=CONVERSATIONS,
            schema=ConversationSchema(conversation_column="conversations"),
        ),
    ),
    validation_fraction=0.1,
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup=0.1, weight_decay=0.0),
    mesh=MeshSpec(data=-1, expert=1),
    seq_len=256,
    batch_size=8,
    precision="p=f32,c=f32",  # bfloat16 is emulated, and slow, on a CPU
    num_train_steps=100,
    eval_every_train_steps=50,
    sample_max_tokens=96,
    tracker=TrackerSpec(project="snowball-tiny", tags=("sft", "tiny")),
)

if __name__ == "__main__":
    run_sft_cli(SPEC, default_accelerator="1xcpu")
