"""Fine-tune Snowball 67B on OpenThoughts-Agent with H100s: 32,768 tokens, ten steps.

    python -m experiments.sft.configs.snowball_h100 --accelerator 32xH100

A starting recipe: change the fields for another step count, batch size or context length.
"""

from experiments.sft.launcher import run_sft_cli
from experiments.sft.sources import HubDataset, HubModel
from experiments.sft.spec import (
    ConversationSchema,
    DatasetSpec,
    MeshSpec,
    OptimizerConfig,
    SFTSpec,
    TrackerSpec,
)

SPEC = SFTSpec(
    name="snowball-openthoughts-agent-sft",
    model=HubModel(
        repo="open-athena/snowball-67b-a2b-base-262k-qk175-skew8",
        revision="058ecaf27b9e4f37219df221a51e7d490d58ec3d",
        eos_token_ids=(128001, 128009),
    ),
    chat_template="marin",
    datasets=(
        DatasetSpec(
            name="openthoughts-agent",
            source=HubDataset(
                repo="open-thoughts/OpenThoughts-Agent-SFT-100K",
                revision="45fb28fcc38d352133cb28a1c8a43a2f14fea97b",
            ),
            schema=ConversationSchema(conversation_column="conversations"),
            replacements=(("<think>", "<|start_think|>"), ("</think>", "<|end_think|>")),
        ),
    ),
    optimizer=OptimizerConfig(
        learning_rate=5e-5,
        beta1=0.9,
        beta2=0.95,
        epsilon=1e-8,
        weight_decay=0.0,
        max_grad_norm=1.0,
        schedule="cosine",
        warmup=0.0,
        min_lr_ratio=0.1,
    ),
    # Each sequence over four devices, the experts over the rest.
    mesh=MeshSpec(context=4, expert=-1),
    seq_len=32_768,
    packing="separate",
    batch_size=8,
    num_train_steps=10,
    tracker=TrackerSpec(project="snowball-sft", tags=("sft", "snowball")),
)

if __name__ == "__main__":
    run_sft_cli(SPEC)
