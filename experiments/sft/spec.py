"""SFTSpec: everything that a chat fine-tuning recipe chooses.

Every field says its meaning, unit and range, and is checked when the spec is made, before any work. Which
fields bear identity is the table in docs/reference/sft_spec.md, which a test compares with what really happens.
"""

import dataclasses
import math
from dataclasses import dataclass

from neve import InputError

from experiments.sft.cache_source import TokenCache, refuse_unused_fields
from experiments.sft.sources import DataSource, HubModel, ModelSource, TrainedModel
from steps.mix_datasets import LONG_CONVERSATIONS, PACKINGS, check_mixture
from steps.tokenize_chat import TURN_POLICIES, LossOptions
from steps.train_sft import TRACKERS, LoraConfig, OptimizerConfig
from steps.transform_conversations import ConversationSchema, RowPolicies
from steps.upload_hf import check_place


def _one_if_none(value: float | None) -> float:
    return 1 if value is None else value


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """One data set of the mixture."""

    name: str
    """Names its steps (raw/, conversations/, tokenized/), which other recipes then share."""

    source: DataSource | TokenCache
    """Where the raw rows come from, or a token cache that exists already."""

    schema: ConversationSchema = ConversationSchema()  # noqa: RUF009  frozen
    """Columns, keys and role values of a conversation; kind "auto" finds them in the first rows."""

    files: tuple[str, ...] = (
        "**/*.parquet",
        "**/*.arrow",
        "**/*.jsonl",
        "**/*.jsonl.gz",
        "**/*.jsonl.zst",
    )
    """Globs of the source's files that hold conversations; `**` crosses folders."""

    subset: str = ""
    """Subset of a data set in the hub's layout; empty: the only one; `*`: all."""

    split: str = ""
    """Split, such as train; empty: the only one, several are refused; `*`: all."""

    replacements: tuple[tuple[str, str], ...] = ()
    """Pairs (text, replacement) applied to every message, such as think tags to the model's tokens."""

    policies: RowPolicies = RowPolicies()  # noqa: RUF009  frozen
    """What happens to rows with faults: error, drop or keep for each."""

    special_text: str = "error"
    """Text of special tokens in the data: error, drop, escape (it stays text), keep (it becomes the token).
    What replacements put in is always meant."""

    max_rejected_fraction: float = 0.01
    """Share of rows that may be rejected before the step fails, 0 to 1."""

    weight: float | None = None
    """Share relative to the other data sets (mixing "weighted"), or probability (interleave), above 0."""

    repeat: float = 1.0
    """Times that an epoch holds each conversation (mixing "concat"), above 0; 0.5: half of them."""

    max_conversations: int | None = None
    """Conversations that are used at most, 1 or more, drawn by data_seed; None: all."""

    long_conversations: str | None = None
    """What happens to a conversation longer than seq_len; None: the spec's long_conversations."""

    def __post_init__(self) -> None:
        """Checks name and threshold; the mixture's numbers are checked with the other data sets."""
        if not self.name:
            raise InputError("dataset: name must not be empty, got ''. Give it a short name.")
        if not 0 <= self.max_rejected_fraction <= 1:
            raise InputError(
                f"dataset {self.name!r}: max_rejected_fraction must be from 0 to 1, got "
                f"{self.max_rejected_fraction}. 0.01 lets one row in a hundred be rejected."
            )
        if isinstance(self.source, TokenCache):
            refuse_unused_fields(self)


@dataclass(frozen=True, kw_only=True)
class MeshSpec:
    """Named axes of the device mesh; one of them may be -1 and takes the devices that are left."""

    data: int = 1
    """Parts of the batch, with the weights sharded over them, 1 or more, or -1."""

    model: int = 1
    """Parts of each weight matrix (tensor parallel), 1 or more, or -1."""

    context: int = 1
    """Parts of each sequence, 1 or more, or -1."""

    expert: int = -1
    """Parts of the experts, which also split the batch, 1 or more, or -1."""

    def sizes(self, num_devices: int) -> dict[str, int]:
        """Returns the axis sizes on `num_devices` devices.

        Raises:
            InputError: The axes don't multiply to the number of devices.
        """
        axes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fixed = math.prod(size for size in axes.values() if size != -1)
        if num_devices % fixed or (-1 not in axes.values() and fixed != num_devices):
            raise InputError(
                f"mesh: the axes must multiply to the {num_devices} devices of the accelerator, got "
                f"{' x '.join(f'{name} {size}' for name, size in axes.items())}. "
                "Change spec.mesh or the accelerator's count."
            )
        return {name: num_devices // fixed if size == -1 else size for name, size in axes.items()}

    def __post_init__(self) -> None:
        """Checks that at most one axis is -1 and none is 0."""
        axes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        bad = {name: size for name, size in axes.items() if size != -1 and size < 1}
        if bad or list(axes.values()).count(-1) > 1:
            raise InputError(
                f"mesh: every axis must be 1 or more and at most one -1, got {axes}. "
                "-1 takes the devices that are left."
            )


@dataclass(frozen=True, kw_only=True)
class TrackerSpec:
    """Where metrics go besides loss.jsonl and metrics.jsonl."""

    kinds: tuple[str, ...] = ("wandb",)
    """Of wandb, tensorboard and trackio. The environment switches W&B on (WANDB_MODE, WANDB_API_KEY)."""

    project: str = "neve-sft"
    """Project of Weights & Biases and trackio."""

    tags: tuple[str, ...] = ()
    """Weights & Biases tags."""

    def __post_init__(self) -> None:
        """Checks the kinds."""
        unknown = [kind for kind in self.kinds if kind not in TRACKERS]
        if unknown:
            raise InputError(
                f"tracker: kinds must be among {', '.join(TRACKERS)}, got {', '.join(unknown)}. "
                "Remove them."
            )


@dataclass(frozen=True, kw_only=True)
class UploadSpec:
    """A repository on the hub that the exported folder goes to."""

    repo: str
    """Owner and name; made if it isn't there."""

    branch: str = "main"
    """Branch; made from main if it isn't there."""

    private: bool = True
    """A new repository is private, and a public one is refused."""

    license: str | None = None
    """License of the model as the hub names it, such as apache-2.0; None: not stated."""

    overwrite: bool = False
    """Replace files of these names that somebody else wrote. Execution."""

    def __post_init__(self) -> None:
        """Checks the names."""
        check_place(self.repo, self.branch)


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

    mesh: MeshSpec = MeshSpec()
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

    eval_every_train_steps: int = 100
    """Train steps between losses on the held-out rows, 1 or more. Execution."""

    num_data_processes: int | None = None
    """Processes that transform and tokenize, 1 or more; None: one for each core. Execution."""

    tracker: TrackerSpec = TrackerSpec()
    """Who is told the metrics, with project and tags. Execution."""

    def __post_init__(self) -> None:
        """Checks every field that can be checked without its surroundings."""
        self._check_names()
        self._check_caches()
        self._check_numbers()
        if (self.num_train_steps is None) == (self.num_train_epochs is None):
            raise InputError(
                f"spec {self.name!r}: give one of num_train_steps and num_train_epochs, got "
                f"{self.num_train_steps} and {self.num_train_epochs}. Set the other one to None."
            )

    def _check_names(self) -> None:
        if not self.datasets:
            raise InputError(f"spec {self.name!r}: datasets must not be empty, got (). Add one.")
        names = [dataset.name for dataset in self.datasets]
        if len(set(names)) < len(names):
            raise InputError(
                f"spec {self.name!r}: dataset names must differ, got {', '.join(names)}. Rename one."
            )
        check_mixture(
            f"spec {self.name!r}",
            names=names,
            mixing=self.mixing,
            weights=[dataset.weight for dataset in self.datasets],
            repeats=[dataset.repeat for dataset in self.datasets],
            max_conversations=[dataset.max_conversations for dataset in self.datasets],
        )
        choices = [
            ("packing", self.packing, PACKINGS),
            ("long_conversations", self.long_conversations, LONG_CONVERSATIONS),
        ]
        choices += [
            (
                f"long_conversations of {dataset.name!r}",
                dataset.long_conversations,
                LONG_CONVERSATIONS,
            )
            for dataset in self.datasets
            if dataset.long_conversations is not None
        ]
        for field, value, allowed in choices:
            if value not in allowed:
                raise InputError(
                    f"spec {self.name!r}: {field} must be one of {', '.join(allowed)}, got {value!r}. "
                    "Pick one of them."
                )

    def _check_caches(self) -> None:
        """Refuses what only tokenization could do where the tokens exist already."""
        for dataset in self.datasets:
            if not isinstance(dataset.source, TokenCache):
                continue
            policy = dataset.long_conversations or self.long_conversations
            if self.loss != LossOptions() or policy in TURN_POLICIES:
                raise InputError(
                    f"dataset {dataset.name!r}: loss and long_conversations at turn borders are fixed in a "
                    f"token cache, got {self.loss} and {policy!r}. Leave loss out, and drop or truncate."
                )

    def _check_numbers(self) -> None:
        whole = "a whole number"
        limits: list[tuple[str, float, float, float, str]] = [
            ("validation_fraction", self.validation_fraction, 0, 0.5, "a share"),
            ("seq_len", self.seq_len, 2, 2**24, whole),
            ("batch_size", self.batch_size, 1, 2**20, whole),
            ("num_train_steps", _one_if_none(self.num_train_steps), 1, 2**40, whole),
            ("num_train_epochs", _one_if_none(self.num_train_epochs), 1e-9, 1e6, "a number"),
            ("seed", self.seed, 0, 2**31 - 1, whole),
            ("data_seed", self.data_seed, 0, 2**31 - 1, whole),
            ("capacity_factor", self.capacity_factor, 1.0, 1e6, "a number"),
            ("max_dropped_fraction", self.max_dropped_fraction, 0, 1, "a share"),
            ("z_loss", self.z_loss, 0, 1e6, "a number"),
            ("num_samples", self.num_samples, 1, 64, whole),
            ("sample_max_tokens", self.sample_max_tokens, 1, 2**20, whole),
            ("checkpoint_every_seconds", self.checkpoint_every_seconds, 1, 10**9, whole),
            ("keep_every_train_steps", _one_if_none(self.keep_every_train_steps), 1, 2**40, whole),
            ("keep_last_checkpoints", self.keep_last_checkpoints, 1, 1000, whole),
            ("eval_every_train_steps", self.eval_every_train_steps, 1, 2**40, whole),
            ("num_data_processes", _one_if_none(self.num_data_processes), 1, 4096, whole),
            ("per_device_batch_size", _one_if_none(self.per_device_batch_size), 1, 2**20, whole),
            (
                "checkpoint_every_train_steps",
                _one_if_none(self.checkpoint_every_train_steps),
                1,
                2**40,
                whole,
            ),
        ]
        for field, value, low, high, kind in limits:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or (kind == whole and value != int(value)) or not low <= value <= high:
                raise InputError(
                    f"spec {self.name!r}: {field} must be {kind} from {low:g} to {high:g}, got {value!r}. "
                    f"Change it in the recipe or with --spec.{field}."
                )


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
