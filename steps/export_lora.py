"""Step: trained low-rank adapters as a Hugging Face folder, merged and apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neve_train.config import LoraConfig
from neve_train.errors import TrainInputError

__all__ = ["ExportLoraConfig", "LoraConfig", "export_lora"]

DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class ExportLoraConfig:
    """What is exported, and what goes with it."""

    checkpoint: Any
    """Output of train_sft with adapters: a path or a step."""
    adapter: LoraConfig
    """The adapters of that training."""
    model: Any
    """Folder with the base model's config.json and weights: a path or a step."""
    tokenizer: Any
    """Folder with the tokenizer's files: a path or a step."""
    template_text: str
    """Chat template of the training, written into the tokenizer's files; empty: the tokenizer's own."""
    initial_checkpoint: Any = None
    """Levanter checkpoint with the base model's weights, if the training started from one."""
    eos_token_ids: tuple[int, ...] = ()
    """Further ids at which generation stops; those of template, tokenizer and base are included."""
    dtype: str = "bfloat16"
    """Type of the merged weights: bfloat16 or float32; the adapters alone are float32."""
    repo: str = ""
    """Hub repository of the base model that the adapter folder names; empty if it has none."""
    revision: str = ""
    """Its commit."""

    def __post_init__(self) -> None:
        """Checks the type."""
        if self.dtype not in DTYPES:
            raise TrainInputError(
                f"export: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}. Pick one."
            )


def export_lora(config: ExportLoraConfig, output_path: str) -> dict[str, Any]:
    """The output path is the merged Hugging Face folder; adapter/ below it is what PEFT loads.

    Returns:
        train_step (completed), parameters, adapter_parameters, eos_token_ids, dtype.

    Raises:
        CheckpointError: No checkpoint there can be read.
        TrainInputError: An end-of-turn id is no token.
    """
    from neve import progress
    from neve_chat.templates import tokenizer_template
    from neve_train.lora_export import export_adapters  # heavy: jax and Levanter

    tokenizer = str(config.tokenizer)
    return export_adapters(
        str(config.checkpoint),
        config.adapter,
        str(config.model),
        tokenizer,
        config.template_text or tokenizer_template(tokenizer).text,
        output_path,
        initial_checkpoint=config.initial_checkpoint,
        eos_token_ids=tuple(config.eos_token_ids),
        dtype=config.dtype,
        repo=config.repo,
        revision=config.revision,
        on_message=progress.message,
    )
