"""DatasetSpec: one data set of a recipe, where its rows come from and how many of them are used."""

from dataclasses import dataclass

from neve import InputError

from experiments.sft.cache_source import TokenCache, refuse_unused_fields
from experiments.sft.sources import DataSource
from steps.transform_conversations import RowsConfig


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(RowsConfig):
    """One data set of the mixture; which rows are read, and how, are the fields of `RowsConfig`."""

    name: str
    """Names its steps (raw/, conversations/, tokenized/), which other recipes then share."""

    source: DataSource | TokenCache
    """Where the raw rows come from, or a token cache that exists already."""

    max_rejected_fraction: float = 0.01
    """Share of rows that may be rejected before the step fails, 0 to 1."""

    special_text: str = "error"
    """Text of special tokens in the data: error, drop, escape (it stays text), keep (it becomes the token).
    What replacements put in is always meant."""

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
        if not isinstance(self.source, DataSource | TokenCache):
            raise InputError(
                f"dataset {self.name!r}: source must say where the rows are, got {self.source!r}. "
                "Write for example LocalData(path=...)."
            )
        self.check_rows(f"dataset {self.name!r}")
        if isinstance(self.source, TokenCache):
            refuse_unused_fields(self)
