"""
Step: canonical conversations to Levanter token caches with loss masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neve.step import unhashed
from neve_chat.errors import ChatInputError
from neve_chat.spans import LossOptions
from neve_chat.templates import ChatTemplate, check_generation_marks, load_template

__all__ = [
    "TURN_POLICIES",
    "ChatTemplate",
    "LossOptions",
    "TokenizeChatConfig",
    "load_template",
    "tokenize_chat",
]

_LAYOUT = 2
_SPECIAL_TEXT = ("error", "drop", "keep", "escape")
TURN_POLICIES = ("first_turns", "last_turns", "windows")


@dataclass(frozen=True, kw_only=True)
class TokenizeChatConfig:
    """
    Conversations, tokenizer and template.
    """

    input: Any
    """Output of transform_conversations: a path, or that step."""
    tokenizer: Any
    """Folder with tokenizer.json and tokenizer_config.json: a path, or the step that fetches it."""
    template: str
    """Jinja text of the chat template, as load_template(...).text gives it; empty: the
    tokenizer's own."""
    template_name: Any = "template"
    """What to call the template in messages; wrap it in unhashed(), only the text bears
    identity."""
    validation_fraction: float = 0.0
    """Share of the conversations held out for validation by the hash of their id, 0 to < 1."""
    loss: LossOptions = LossOptions()  # noqa: RUF009  frozen
    """What is trained: turns, roles, reasoning, ends of turns."""
    special_text: str = "error"
    """Text of special tokens in the data: error, drop, escape (it stays text) or keep (it becomes
    the token)."""
    allowed_special_text: tuple[str, ...] = ()
    """Special tokens that the data holds on purpose, such as think tokens."""
    max_tokens: int | None = None
    """Tokens above which a conversation is shortened at turn borders; None: it never is."""
    long_conversations: str = "first_turns"
    """How it is shortened: first_turns, last_turns or windows."""
    max_rejected_fraction: float = 0.05
    """Share of refused conversations above which the step fails, 0 to 1."""
    num_processes: Any = unhashed(None)  # noqa: RUF009  frozen
    """Processes on each machine, >= 1, wrapped in unhashed(); None: one for each core."""
    layout: int = _LAYOUT
    """Form of the output; part of identity, so that outputs of an older form are made again."""

    def __post_init__(self) -> None:
        if self.template:
            name = str(getattr(self.template_name, "value", self.template_name))
            check_generation_marks(name, self.template)
        if not 0 <= self.validation_fraction < 1:
            raise ChatInputError(
                "tokenize: validation_fraction must be at least 0 and below 1, "
                f"got {self.validation_fraction}. Pass a share of the conversations."
            )
        if self.special_text not in _SPECIAL_TEXT:
            raise ChatInputError(
                f"tokenize: special_text must be one of {', '.join(_SPECIAL_TEXT)}, got "
                f"{self.special_text!r}. Pass one of them."
            )
        if self.long_conversations not in TURN_POLICIES:
            raise ChatInputError(
                f"tokenize: long_conversations must be one of {', '.join(TURN_POLICIES)}, got "
                f"{self.long_conversations!r}. Pass one of them."
            )
        if self.max_tokens is not None and self.max_tokens < 2:
            raise ChatInputError(
                f"tokenize: max_tokens must be 2 or more, got {self.max_tokens}. Raise it."
            )


def tokenize_chat(config: TokenizeChatConfig, output_path: str) -> dict[str, Any]:
    """
    `train/` and, if any, `validation/` below output_path are caches that Levanter opens.

    Returns:
        Rows, tokens, trained tokens and lengths of each split; baselines; refused rows by reason.

    May be killed and called again; of several cluster tasks each does its share and the first one
    completes the output.

    Raises:
        ChatInputError: wrong template, tokenizer or data.
    """
    from neve import progress
    from neve_chat.parts import Tasks
    from neve_chat.tokenization import (
        TokenizeOptions,
        tokenize_conversations,
    )  # lazy: tensorstore, tokenizers

    results = tokenize_conversations(
        input_path=str(config.input),
        output_path=output_path,
        options=TokenizeOptions(
            tokenizer_path=str(config.tokenizer),
            template=config.template,
            template_name=str(config.template_name),
            validation_fraction=config.validation_fraction,
            loss=config.loss,
            special_text=config.special_text,
            allowed_special_text=config.allowed_special_text,
            max_tokens=config.max_tokens,
            long_conversations=config.long_conversations,
            max_rejected_fraction=config.max_rejected_fraction,
        ),
        tasks=Tasks.from_environment(getattr(config.num_processes, "value", config.num_processes)),
        on_progress=lambda done, total, facts: progress.report(done, total, "rows", **facts),
        on_example=lambda text: progress.message(
            f"First conversation; only the marked part is trained:\n{text}"
        ),
    )
    if not results:
        return results
    train = results["train"]
    progress.message(
        f"{train['rows']:,} conversations, {train['tokens']:,} tokens, "
        f"{train['trained_tokens']:,} of them trained; "
        f"{results['validation']['rows']:,} conversations held out"
    )
    for text in _warnings(results):
        progress.message(text)
    return results


def _warnings(results: dict[str, Any]) -> Iterator[str]:
    """
    What a user should know of the rows that were kept or refused.
    """
    notes = dict(results["notes"])
    fields = notes.pop("reasoning fields", 0)
    if dropped := notes.pop("reasoning fields dropped by the template", 0):
        yield (
            f"{dropped:,} of {fields:,} reasoning fields are dropped by the template, as it does at "
            "serving: cut each conversation behind every assistant turn to train them all"
        )
    for note, count in notes.items():
        if count:
            yield f"{note}: {count:,}"
    if results["rejected"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in results["rejected"].items())
        yield f"refused: {reasons}; kept in rejected/"
    encoder = results["encoder"]
    yield (
        f"fastokens encoded {encoder['fast']:,} conversations; tokenizers checked "
        f"{encoder['refereed']:,} of them, {encoder['differences']:,} differ"
        if encoder["fast"]
        else "encoded with tokenizers"
    )
    yield from encoder["messages"]
