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
