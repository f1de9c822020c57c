"""
Step: rows of a data set to shards of canonical conversations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neve.step import unhashed
from neve_chat.checks import RowPolicies
from neve_chat.dataset_info import read_dataset_info
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema

__all__ = [
    "ConversationSchema",
    "RowPolicies",
    "RowsConfig",
    "TransformConversationsConfig",
    "read_dataset_info",
    "transform_conversations",
]

_LAYOUT = 4
_MB = 1_000_000


@dataclass(frozen=True, kw_only=True)
class RowsConfig:
    """
    Which rows of a source are read, and how they are understood.
    """

    schema: ConversationSchema = ConversationSchema()  # noqa: RUF009  frozen
    """Columns, keys and role values of a conversation; kind "auto" finds them in the first rows."""
    files: tuple[str, ...] = (
        "**/*.parquet",
        "**/*.arrow",
        "**/*.jsonl",
        "**/*.jsonl.gz",
        "**/*.jsonl.zst",
    )
    """Globs of the source's files that are read; `*` stays inside a folder, `**` crosses folders."""
    subset: str = ""
    """Subset of a data set in a layout of the hub; empty: the only one; `*`: all."""
    split: str = ""
    """Split, such as train; empty: the only one, several are refused; `*`: all."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Pairs (old, new) applied in this order to the text and reasoning of every message, such as
    think tags to the model's tokens."""
    policies: RowPolicies = RowPolicies()  # noqa: RUF009  frozen
    """What happens to rows with faults: error, drop or keep for each."""
    max_rejected_fraction: float = 0.05
    """Share of refused rows above which the step fails, 0 to 1."""

    def check_rows(self, what: str) -> None:
        """
        Refuses what can be no choice of rows; `what` begins the error.

        Raises:
            ChatInputError: no files, or max_rejected_fraction is out of its range.
        """
        if not self.files:
            raise ChatInputError(
                f"{what}: files must hold one glob or more, got (). Leave it out for the usual ones."
            )
        if not 0 <= self.max_rejected_fraction <= 1:
            raise ChatInputError(
                f"{what}: max_rejected_fraction must be between 0 and 1, got "
                f"{self.max_rejected_fraction}. 0.01 lets one row in a hundred be refused."
            )


@dataclass(frozen=True, kw_only=True)
class TransformConversationsConfig(RowsConfig):
    """
    What to read and how to understand it.
    """

    input: Any
    """Folder or file with the rows: a path, an s3:// or gs:// URL, or a step that fetches them."""
    num_processes: Any = unhashed(None)  # noqa: RUF009  frozen
    """Processes on each machine, >= 1, wrapped in unhashed(); None: one for each core."""
    layout: int = _LAYOUT
    """Form of the output and rules that make it; part of identity: what older ones made is made again."""

    def __post_init__(self) -> None:
        self.check_rows("transform")
        num_processes = getattr(self.num_processes, "value", self.num_processes)
        if num_processes is not None and num_processes < 1:
            raise ChatInputError(
                f"transform: num_processes must be at least 1, got {num_processes}. Pass "
                "unhashed(None) for one on each core."
            )
        if self.layout != _LAYOUT:
            raise ChatInputError(
                f"transform: layout must be {_LAYOUT}, the only form that is written, got "
                f"{self.layout}. Leave it out."
            )


def transform_conversations(
    config: TransformConversationsConfig, output_path: str
) -> dict[str, Any]:
    """
    The conversations stand below output_path as `shard-*.jsonl.zst`.

    May be killed and called again; of several cluster tasks each does its share and the first one
    completes the output.

    Returns:
        Counts in, out and refused by reason.

    Raises:
        ChatInputError: no input, no usable row, too many refused, or a fault that isn't allowed.
    """
    from neve import progress
    from neve_chat import (
        transform,
    )  # lazy: orjson, zstandard and numpy, which planning does not need
    from neve_chat.parts import Tasks

    results = transform.transform_conversations(
        input_path=str(config.input),
        output_path=output_path,
        schema=config.schema,
        files=config.files,
        subset=config.subset,
        split=config.split,
        replacements=dict(config.replacements),
        policies=config.policies,
        max_rejected_fraction=config.max_rejected_fraction,
        tasks=Tasks.from_environment(getattr(config.num_processes, "value", config.num_processes)),
        on_progress=lambda done, total, facts: progress.report(
            done // _MB, total // _MB, "MB", **facts
        ),
        on_message=progress.message,
    )
    if results.get("rejected"):
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in results["rejected"].items())
        progress.message(
            f"{results['rows_out']:,} of {results['rows_in']:,} conversations kept; refused: "
            f"{reasons}"
        )
    return results
