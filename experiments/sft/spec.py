"""SFTSpec: everything that a chat fine-tuning recipe chooses.

Every field says its meaning, unit and range, and is checked when the spec is made, before any work. Which
fields bear identity is the table in docs/reference/sft_spec.md, which a test compares with what really happens.
"""

from dataclasses import dataclass

from experiments.sft.cache_source import TokenCache
from experiments.sft.dataset import DatasetSpec
from experiments.sft.execution import MeshSpec, TrackerSpec
from experiments.sft.sources import HubModel, ModelSource, TrainedModel
from experiments.sft.spec_checks import check_spec
from steps.tokenize_chat import LossOptions
from steps.train_sft import LoraConfig, OptimizerConfig
from steps.transform_conversations import ConversationSchema, RowPolicies
from steps.upload_hf import UploadSpec


@dataclass(frozen=True, kw_only=True)
class SFTSpec:
    """A chat fine-tuning run: model, data, optimizer, lengths. Used by `sft_steps` and `run_sft_cli`."""

    name: str
    """Names the run's own steps: checkpoints/<name>, exports/<name>, samples/<name>."""

    model: ModelSource | TrainedModel
    """The base model; weights, config and tokenizer come from it."""

    datasets: tuple[DatasetSpec, ...]
    """Data sets of the mixture, one or more."""

    chat_template: str = "marin"
    """Name of a registered chat template, path of a Jinja file with generation marks, or "tokenizer": its own."""

    loss: LossOptions = LossOptions()  # noqa: RUF009  frozen
    """What is trained of a conversation: turns, roles, reasoning, ends of turns."""

    validation_fraction: float = 0.0
    """Share of each data set held out by a hash of the conversation, 0 to 0.5."""

    optimizer: OptimizerConfig = OptimizerConfig()  # noqa: RUF009  frozen
    """Adam and its learning rate schedule."""

    adapter: LoraConfig | None = None
    """Low-rank adapters, trained instead of the whole model; None: all of it is trained."""

    seq_len: int = 4096
    """Positions per row, tokens; at most what the model allows."""

    packing: str = "separate"
    """How conversations fill rows: "separate" puts one into each, "packed" as many as fit best."""

    mixing: str | None = None
    """How data sets are mixed: "concat", "weighted", "interleave_under" or "interleave_over"; None:
    weighted if a data set has a weight, else concat."""

    long_conversations: str = "drop"
    """What happens to a conversation longer than seq_len: "drop", "truncate" (its end), "error",
    "first_turns", "last_turns" or "windows"."""

    batch_size: int = 16
    """Rows per train step over all devices, 1 or more."""

    num_train_steps: int | None = None
    """Optimizer updates, 1 or more; give this or num_train_epochs."""

    num_train_epochs: float | None = None
    """Epochs of the mixture, above 0; give this or num_train_steps."""

    precision: str = "p=f32,c=bfloat16"
    """Types of parameters (p) and compute (c), as a jmp policy."""

    seed: int = 0
    """Seed of training, 0 or more."""

    data_seed: int = 0
    """Seed of the order of the data, 0 or more."""

    capacity_factor: float = 1.25
    """Rows that each expert shard accepts over its even share, 1.0 or more; assignments beyond it are dropped."""

    max_dropped_fraction: float = 0.001
    """Share of a train step's expert assignments, 0 to 1; if more are dropped, training stops."""

    z_loss: float = 0.0
    """Weight of the z-loss, 0 or more."""

    num_samples: int = 4
    """Prompts answered greedily before and after training, 1 to 64."""

    sample_max_tokens: int = 256
    """Longest answer of a sample, tokens, 1 or more."""

    upload: UploadSpec | None = None
    """Where the export is shared, once the samples are there; None: nowhere."""

    version: str = "1"
    """Bumped to train again although nothing else changed."""

    mesh: MeshSpec = MeshSpec()  # noqa: RUF009  frozen
    """Axes of the device mesh. Execution: never part of identity."""

    per_device_batch_size: int | None = None
    """Rows per device and microbatch; None: the whole share at once. Execution."""

    checkpoint_every_train_steps: int | None = None
    """Train steps between checkpoints; None: only by time and at the end. Execution."""

    checkpoint_every_seconds: int = 900
    """Seconds between temporary checkpoints, 1 or more. Execution."""

    keep_every_train_steps: int | None = None
    """Train steps between checkpoints that are never removed; None: those of
    checkpoint_every_train_steps. The last one always stays. Execution."""

    keep_last_checkpoints: int = 1
    """Newest ones kept of the other checkpoints, 1 or more. Execution."""

    export_every_train_steps: int | None = None
    """Train steps between Hugging Face folders below checkpoints/<name>/exports, made while training
    goes on; None: only the one at the end. Execution."""

    eval_every_train_steps: int = 100
    """Train steps between losses on the held-out rows, 1 or more. Execution."""

    num_data_processes: int | None = None
    """Processes that transform and tokenize, 1 or more; None: one for each core. Execution."""

    tracker: TrackerSpec = TrackerSpec()  # noqa: RUF009  frozen
    """Who is told the metrics, with project and tags. Execution."""

    def __post_init__(self) -> None:
        """Checks every field that can be checked without its surroundings."""
        check_spec(self)


__all__ = [
    "ConversationSchema",
    "DatasetSpec",
    "HubModel",
    "LoraConfig",
    "LossOptions",
    "MeshSpec",
    "OptimizerConfig",
    "RowPolicies",
    "SFTSpec",
    "TokenCache",
    "TrackerSpec",
    "UploadSpec",
]
