"""Where a recipe's model and conversations come from: each source declares the steps that bring them.

A new kind of source is one frozen dataclass here (or in a recipe) with the method of `ModelSource` or `DataSource`.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from neve import ExecutorStep, adopt

from steps.download_hf import DownloadHfConfig, download_hf
from steps.import_local import import_local, local_source
from steps.import_remote import import_remote, remote_source
from steps.make_snowball_base import MakeSnowballBaseConfig, make_snowball_base
from steps.make_tokenizer import MakeTokenizerConfig, make_tokenizer

CONFIG_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "*.jinja",
)
"""Files of a model repository that planning and data need: fetched before any weight."""

WEIGHT_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")
"""Files of a model repository that training loads."""


@dataclass(frozen=True, kw_only=True)
class ModelSteps:
    """The steps that bring a model: a light one with config and tokenizer, and one with the weights."""

    tokenizer: ExecutorStep
    """Step whose output has config.json, tokenizer.json and tokenizer_config.json."""

    weights: ExecutorStep
    """Step whose output has the weights: a Hugging Face folder, or Levanter's own checkpoints."""

    is_checkpoint: bool = False
    """Whether the weights are Levanter's own checkpoints."""


@runtime_checkable
class ModelSource(Protocol):
    """Declares how a base model gets under the prefix."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Token ids at which generation stops."""
        ...

    def steps(self, after: tuple[ExecutorStep, ...] = ()) -> ModelSteps:
        """Returns the model's steps; the weights are only fetched once the steps in `after` succeeded."""
        ...


@runtime_checkable
class DataSource(Protocol):
    """Declares how raw conversations get under the prefix."""

    def step(self, name: str) -> ExecutorStep:
        """Returns the step whose output holds the source's files."""
        ...


def slug(text: str) -> str:
    """Returns `text` as a step name part: lower case, digits, `-`, `_` and `.`."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-")


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """A model repository of the Hugging Face hub at one commit."""

    repo: str
    """Repository, `organization/name`."""

    revision: str
    """Full commit hash, 40 hex digits: weights, config and tokenizer come from it."""

    eos_token_ids: tuple[int, ...] = (128001, 128009)
    """Token ids at which generation stops; written to the export's generation config."""

    def steps(self, after: tuple[ExecutorStep, ...] = ()) -> ModelSteps:
        """Returns two download steps: config and tokenizer files, and weights."""
        name = slug(self.repo.rpartition("/")[2])

        def download(
            step_name: str, allow: tuple[str, ...], after: tuple[ExecutorStep, ...] = ()
        ) -> ExecutorStep:
            config = DownloadHfConfig(
                repo=self.repo, repo_type="model", revision=self.revision, allow=allow
            )
            return ExecutorStep(
                name=step_name, fn=download_hf, config=config, resumable=True, after=after
            )

        return ModelSteps(
            tokenizer=download(f"tokenizers/{name}", CONFIG_FILES),
            weights=download(f"models/{name}", WEIGHT_FILES, after=after),
        )


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A Hugging Face folder on this machine; its identity is the content of its files."""

    path: str
    """Folder with config.json, tokenizer files and safetensors; a path or a file:// URL."""

    eos_token_ids: tuple[int, ...] = (128001, 128009)
    """Token ids at which generation stops; written to the export's generation config."""

    def steps(self, after: tuple[ExecutorStep, ...] = ()) -> ModelSteps:
        """Returns one import step that serves as tokenizer and as weights."""
        step = ExecutorStep(
            name=f"models/{slug(self.path.rstrip('/').rpartition('/')[2])}",
            fn=import_local,
            config=local_source(self.path),
            resumable=True,
        )
        return ModelSteps(tokenizer=step, weights=step)


@dataclass(frozen=True, kw_only=True)
class RandomSnowball:
    """A small Snowball with random weights and a tokenizer trained on the recipe's own text."""

    corpus: DataSource
    """Conversations that the tokenizer's merges are learned from."""

    corpus_name: str
    """Name of that data set, so that its import is shared with the recipe's."""

    shape: MakeTokenizerConfig
    """Shape of the model and size of the vocabulary; its corpus is filled in from `corpus`."""

    seed: int = 0
    """Seed of the weights, 0 or more."""

    eos_token_ids: tuple[int, ...] = ()
    """Token ids at which generation stops; empty: the tokenizer's own end of text and end of turn."""

    def steps(self, after: tuple[ExecutorStep, ...] = ()) -> ModelSteps:
        """Returns a step that trains the tokenizer and one that draws the weights."""
        tokenizer = ExecutorStep(
            name="tokenizers/snowball-random",
            fn=make_tokenizer,
            config=dataclasses.replace(self.shape, corpus=self.corpus.step(self.corpus_name)),
        )
        weights = ExecutorStep(
            name="models/snowball-random",
            fn=make_snowball_base,
            config=MakeSnowballBaseConfig(input=tokenizer, seed=self.seed),
            after=after,
        )
        return ModelSteps(tokenizer=tokenizer, weights=weights)


@dataclass(frozen=True, kw_only=True)
class NativeCheckpoint:
    """A Levanter checkpoint that exists already: adopted where it lies; its weights only, no optimizer."""

    path: str
    """Folder of step-N checkpoints (the newest is used) or one of them; a path or a URL."""

    model: ModelSource
    """Where config.json and tokenizer come from, such as the HubModel that the checkpoint began as."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Those of `model`."""
        return self.model.eos_token_ids

    def steps(self, after: tuple[ExecutorStep, ...] = ()) -> ModelSteps:
        """Returns the tokenizer step of `model` and the adopted checkpoint.

        Raises:
            InputError: Nothing is at the path.
        """
        name = slug(self.path.rstrip("/").rpartition("/")[2])
        return ModelSteps(
            tokenizer=self.model.steps().tokenizer,
            weights=adopt(f"models/{name}", self.path),
            is_checkpoint=True,
        )


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """What another recipe trains or has trained: its last checkpoint's weights, no optimizer.

    `sft_steps` makes the other recipe's steps, on the accelerator of this one.
    """

    spec: Any
    """SFTSpec of the earlier training; its tokenizer and end-of-turn ids are this one's too."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Those of the earlier training."""
        return self.spec.model.eos_token_ids


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """A dataset repository of the Hugging Face hub at one commit."""

    repo: str
    """Repository, `organization/name`."""

    revision: str
    """Full commit hash, 40 hex digits."""

    files: tuple[str, ...] = (
        "*.parquet",
        "*.arrow",
        "*.jsonl",
        "*.jsonl.gz",
        "*.jsonl.zst",
        "README.md",
    )
    """Patterns of the files to fetch; `*` also crosses `/`. README.md names subsets and splits."""

    def step(self, name: str) -> ExecutorStep:
        """Returns the download step."""
        config = DownloadHfConfig(
            repo=self.repo, repo_type="dataset", revision=self.revision, allow=self.files
        )
        return ExecutorStep(name=f"raw/{name}", fn=download_hf, config=config, resumable=True)


@dataclass(frozen=True, kw_only=True)
class LocalData:
    """A file or folder on this machine; its identity is the content, not the path."""

    path: str
    """File or folder; a path or a file:// URL."""

    def step(self, name: str) -> ExecutorStep:
        """Returns the import step."""
        return ExecutorStep(
            name=f"raw/{name}", fn=import_local, config=local_source(self.path), resumable=True
        )


@dataclass(frozen=True, kw_only=True)
class RemoteData:
    """An object or folder of S3 or Google Cloud Storage; its identity is the listing, not the place."""

    url: str
    """s3://bucket/path or gs://bucket/path; credentials come from the environment."""

    def step(self, name: str) -> ExecutorStep:
        """Returns the import step; the store is asked for its listing now."""
        return ExecutorStep(
            name=f"raw/{name}", fn=import_remote, config=remote_source(self.url), resumable=True
        )
