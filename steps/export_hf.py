"""Step: a native checkpoint as a Hugging Face folder, ready to be served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neve_train.errors import TrainInputError

__all__ = ["ExportHfConfig", "export_hf"]

DTYPES = ("bfloat16", "float32", "float16")


@dataclass(frozen=True, kw_only=True)
class ExportHfConfig:
    """What is exported, and what goes with it."""

    checkpoint: Any
    """Output of train_sft, or one step-N folder: a path or a step."""
    model: Any
    """Folder with the base model's config.json: a path or a step."""
    tokenizer: Any
    """Folder with the tokenizer's files: a path or a step."""
    template_text: str
    """Chat template of the training; empty: the tokenizer's own."""
    caches: tuple[Any, ...] = ()
    """Token caches of the training, paths or steps: their template must be this one."""
    eos_token_ids: tuple[int, ...] = ()
    """Further ids at which generation stops; those of template, tokenizer and base are included."""
    dtype: str = "bfloat16"
    """Type of the weights: bfloat16, float32 or float16."""
    max_shard_bytes: int = 5_000_000_000
    """Largest file of weights, bytes, 1 or more; a larger tensor has a file of its own."""

    def __post_init__(self) -> None:
        """Checks type and size."""
        if self.dtype not in DTYPES:
            raise TrainInputError(
                f"export: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}. Pick one."
            )
        if self.max_shard_bytes < 1:
            raise TrainInputError(
                f"export: max_shard_bytes must be 1 or more, got {self.max_shard_bytes}. Raise it."
            )


def export_hf(config: ExportHfConfig, output_path: str) -> dict[str, Any]:
    """The output path is the Hugging Face folder: weights, configs, tokenizer and template.

    It needs no accelerator, and memory for one tensor at a time.

    Returns:
        train_step (completed), parameters, eos_token_ids, dtype.

    Raises:
        CheckpointError: The newest checkpoint can't be read, or there is none.
        TrainInputError: An end-of-turn id is no token, or a cache was made with another template.
    """
    from neve import progress
    from neve_chat.templates import tokenizer_template
    from neve_train.export import export  # heavy: jax and Levanter

    tokenizer = str(config.tokenizer)

    return export(
        str(config.checkpoint),
        str(config.model),
        tokenizer,
        config.template_text or tokenizer_template(tokenizer).text,
        output_path,
        caches=tuple(map(str, config.caches)),
        eos_token_ids=tuple(config.eos_token_ids),
        dtype=config.dtype,
        max_shard_bytes=config.max_shard_bytes,
        on_message=progress.message,
        on_progress=lambda done, total: progress.report(done, total, "bytes"),
    )
