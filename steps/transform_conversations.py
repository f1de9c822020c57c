"""
Step: rows of a data set to shards of canonical conversations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema

__all__ = ["TransformConversationsConfig", "transform_conversations"]


@dataclass(frozen=True, kw_only=True)
class TransformConversationsConfig:
    """
    What to read and how to understand it.
    """

    input: Any
    """Folder or file with the rows: a path, or a download step."""
    schema: ConversationSchema = field(default_factory=ConversationSchema)
    """Layout of the rows."""
    files: tuple[str, ...] = ("**/*.parquet", "**/*.jsonl", "**/*.jsonl.gz", "**/*.jsonl.zst")
    """Globs of the files below input; `*` stays inside a folder, `**` crosses folders."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Pairs (old, new) applied in this order to the text and reasoning of every message."""
    rows_per_shard: int = 5_000
    """Conversations per output shard, >= 1."""
    max_rejected_fraction: float = 0.05
    """Share of refused rows above which the step fails, 0 to 1."""

    def __post_init__(self) -> None:
        if self.rows_per_shard < 1:
            raise ChatInputError(
                f"transform: rows_per_shard must be at least 1, got {self.rows_per_shard}. "
                f"Pass a positive number."
            )
        if not 0 <= self.max_rejected_fraction <= 1:
            raise ChatInputError(
                "transform: max_rejected_fraction must be between 0 and 1, "
                f"got {self.max_rejected_fraction}. Pass a share of the rows."
            )


def transform_conversations(
    config: TransformConversationsConfig, output_path: str
) -> dict[str, Any]:
    """
    The conversations stand below output_path as `shard-NNNNN.jsonl.zst`.

    Returns:
        Counts in, out and refused by reason.

    Raises:
        ChatInputError: no input, no usable row, or too many refused.
    """
    from neve import progress
    from neve_chat import (
        transform,
    )  # lazy: orjson, zstandard and pyarrow, which planning does not need

    results = transform.transform_conversations(
        input_path=str(config.input),
        output_path=output_path,
        schema=config.schema,
        files=config.files,
        replacements=dict(config.replacements),
        rows_per_shard=config.rows_per_shard,
        max_rejected_fraction=config.max_rejected_fraction,
        on_progress=lambda done, total: progress.report(done, total, "rows"),
    )
    if results["rejected"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in results["rejected"].items())
        progress.message(
            f"{results['rows_out']:,} of {results['rows_in']:,} conversations kept; refused: "
            f"{reasons}"
        )
    return results
