"""What a training run consists of: light dataclasses that recipes import to plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from neve_train.errors import TrainInputError

__all__ = ["TRACKERS", "ExecutionConfig", "LoraConfig", "OptimizerConfig", "TrainSftConfig"]

SCHEDULES = ("cosine", "linear", "constant")

TRACKERS = ("wandb", "tensorboard", "trackio")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam and its learning rate schedule."""

    learning_rate: float = 5e-5
    """Peak learning rate, above 0."""
    beta1: float = 0.9
    """Decay of the first moment, 0 to < 1."""
    beta2: float = 0.95
    """Decay of the second moment, 0 to < 1."""
    epsilon: float = 1e-8
    """Added to the denominator, above 0."""
    weight_decay: float = 0.0
    """Decoupled weight decay, 0 or more; above 0 it also shrinks matrices that get no gradient."""
    decay_also: tuple[str, ...] = ()
    """Parts of names of tensors that decay beside those that do anyway, such as router_bias."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm, above 0; 0 switches it off."""
    warmup: float = 0.0
    """Linear warmup: a fraction of the train steps if below 1, else train steps."""
    min_lr_ratio: float = 0.1
    """Learning rate of the last train step relative to the peak, 0 to 1."""
    schedule: str = "cosine"
    """Shape after warmup: cosine, linear or constant."""

    def __post_init__(self) -> None:
        """Checks every number."""
        ranges = (
            ("learning_rate", self.learning_rate > 0, "above 0"),
            ("beta1", 0 <= self.beta1 < 1, "from 0 to below 1"),
            ("beta2", 0 <= self.beta2 < 1, "from 0 to below 1"),
            ("epsilon", self.epsilon > 0, "above 0"),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("max_grad_norm", self.max_grad_norm >= 0, "0 or more"),
            ("warmup", self.warmup >= 0, "0 or more"),
            ("min_lr_ratio", 0 <= self.min_lr_ratio <= 1, "from 0 to 1"),
        )
        for name, is_inside, rule in ranges:
            value = getattr(self, name)
            if not (is_inside and math.isfinite(value)):
                raise TrainInputError(f"optimizer: {name} must be {rule}, got {value}. Change it.")
        if isinstance(self.decay_also, str) or not all(self.decay_also):
            raise TrainInputError(
                "optimizer: decay_also must be a list of parts of names, got "
                f"{self.decay_also!r}. Change it."
            )
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise TrainInputError(
                "optimizer: warmup must be below 1 or whole train steps, got "
                f"{self.warmup}. Round it."
            )
        if self.schedule not in SCHEDULES:
            raise TrainInputError(
                f"optimizer: schedule must be one of {', '.join(SCHEDULES)}, got "
                f"{self.schedule!r}. Pick one of them."
            )


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters: the base model stays as it is, only they are trained."""

    rank: int = 16
    """Inner size of each adapter, 1 or more."""
    alpha: float = 32.0
    """What an adapter adds is scaled by alpha / rank, above 0."""
    dropout: float = 0.0
    """Share of an adapter's inputs that are zeroed in training, 0 to < 1."""
    target_modules: tuple[str, ...] = ()
    """Names of linear layers, such as q_proj; empty: all but the output head."""

    def __post_init__(self) -> None:
        """Checks every number."""
        ranges = (
            ("rank", self.rank >= 1 and self.rank == int(self.rank), "a whole number from 1"),
            ("alpha", self.alpha > 0 and math.isfinite(self.alpha), "above 0"),
            ("dropout", 0 <= self.dropout < 1, "from 0 to below 1"),
        )
        for name, is_inside, rule in ranges:
            if not is_inside:
                raise TrainInputError(
                    f"adapter: {name} must be {rule}, got {getattr(self, name)}. Change it."
                )


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """How training runs; nothing here changes what it is, so it never enters identity."""

    mesh: tuple[tuple[str, int], ...] = ()
    """Sizes of the mesh axes data, expert, context, model; absent ones are 1, one may be -1."""
    per_device_batch_size: int | None = None
    """Rows per device and microbatch; None: a device's whole share at once."""
    checkpoint_every_train_steps: int | None = None
    """Train steps between checkpoints; None: only by time and at the end."""
    checkpoint_every_seconds: float = 900
    """Seconds between checkpoints, above 0."""
    keep_every_train_steps: int | None = None
    """Train steps between checkpoints that are never removed; None: all that
    checkpoint_every_train_steps makes. The last one always stays."""
    keep_last_checkpoints: int = 1
    """Of the others, how many of the newest are kept, 1 or more; one that stays replaces them."""
    export_every_train_steps: int | None = None
    """Train steps between Hugging Face folders exports/step-N, made beside the training; None: none."""
    export_eos_token_ids: tuple[int, ...] = ()
    """Further ids at which generation stops in them; those of template, tokenizer and base are included."""
    eval_every_train_steps: int = 100
    """Train steps between losses on the held-out rows, 1 or more."""
    max_eval_rows: int | None = None
    """Held-out rows of each data set that are evaluated; None: all."""
    log_every_train_steps: int = 1
    """Train steps between rows of metrics, 1 or more."""
    trackers: tuple[str, ...] = ("wandb",)
    """Who is told the metrics besides loss.jsonl: wandb, tensorboard, trackio. W&B also needs
    WANDB_API_KEY or WANDB_MODE."""
    tracker_project: str = "neve-sft"
    """Project of W&B and trackio."""
    tracker_tags: tuple[str, ...] = ()
    """Weights & Biases tags."""
    compilation_cache_dir: str | None = None
    """Folder below which compiled programs are kept for each jax version and platform; None:
    JAX_COMPILATION_CACHE_DIR as it is, else .neve/jax-cache below the prefix of a step."""

    def __post_init__(self) -> None:
        """Checks every cadence."""
        for name in (
            "per_device_batch_size",
            "checkpoint_every_train_steps",
            "keep_every_train_steps",
            "keep_last_checkpoints",
            "export_every_train_steps",
            "eval_every_train_steps",
            "max_eval_rows",
            "log_every_train_steps",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TrainInputError(
                    f"execution: {name} must be 1 or more, got {value}. Raise it."
                )
        unknown = [name for name in self.trackers if name not in TRACKERS]
        if unknown:
            raise TrainInputError(
                f"execution: trackers must be among {', '.join(TRACKERS)}, got {', '.join(unknown)}. "
                "Remove them."
            )
        if not self.checkpoint_every_seconds > 0:
            raise TrainInputError(
                "execution: checkpoint_every_seconds must be above 0, got "
                f"{self.checkpoint_every_seconds}. Raise it."
            )


@dataclass(frozen=True, kw_only=True)
class TrainSftConfig:
    """Model, data and optimization of one fine-tuning run."""

    model: Any
    """Hugging Face folder with config.json, and weights unless initial_checkpoint has them: a path or a step."""
    tokenizer: Any
    """Folder with tokenizer.json and tokenizer_config.json: a path or a step."""
    plan: Any
    """Output of mix_datasets: the rows of the training in their order, and how they are packed."""
    caches: tuple[Any, ...]
    """Token caches in the order of the plan's data sets: paths or steps."""
    seq_len: int
    """Positions per row, tokens; the plan's."""
    batch_size: int
    """Rows per train step over all devices, 1 or more; the plan's."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Adam and its schedule."""
    precision: str = "p=f32,c=bfloat16"
    """Types of parameters (p) and compute (c), as a jmp policy."""
    seed: int = 0
    """Seed of training, 0 or more."""
    capacity_factor: float = 1.25
    """Rows that an expert shard accepts over its even share, 1 or more; more are dropped."""
    max_dropped_fraction: float = 0.001
    """Share of a train step's expert assignments, 0 to 1; if more are dropped, training stops."""
    z_loss: float = 0.0
    """Weight of the squared log-partition, 0 or more."""
    initial_checkpoint: Any = None
    """Output of an earlier training, or Levanter checkpoint, whose weights are the start; its optimizer isn't."""
    adapter: LoraConfig | None = None
    """Low-rank adapters that are trained instead of the model; None: the whole model is."""
    execution: Any = ExecutionConfig()
    """How training runs, wrapped in unhashed() by a recipe."""

    def __post_init__(self) -> None:
        """Checks what needs no file."""
        if not self.caches:
            raise TrainInputError(
                "training: caches must hold one or more token caches, got (). Add one."
            )
        for name, low in (("seq_len", 2), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < low:
                raise TrainInputError(
                    f"training: {name} must be {low} or more, got {getattr(self, name)}. Raise it."
                )
        if not (self.capacity_factor >= 1 and self.z_loss >= 0):
            raise TrainInputError(
                "training: capacity_factor must be 1 or more and z_loss 0 or more, got "
                f"{self.capacity_factor} and {self.z_loss}. Raise them."
            )
        if not 0 <= self.max_dropped_fraction <= 1:
            raise TrainInputError(
                "training: max_dropped_fraction must be from 0 to 1, got "
                f"{self.max_dropped_fraction}. Change it."
            )
