"""
Step: canonical conversations to Levanter token caches with loss masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from neve.step import unhashed
from neve_chat.mixture_rules import TURN_POLICIES
from neve_chat.spans import LossOptions
from neve_chat.templates import ChatTemplate, check_generation_marks, load_template
from neve_chat.tokenize_options import TokenizeOptions, TokensConfig

__all__ = [
    "TURN_POLICIES",
    "ChatTemplate",
    "LossOptions",
    "TokenizeChatConfig",
    "load_template",
    "tokenize_chat",
]

_LAYOUT = 3


@dataclass(frozen=True, kw_only=True)
class TokenizeChatConfig(TokensConfig):
    """
    Conversations and tokenizer, and what bears on their tokens.
    """

    input: Any
    """Output of transform_conversations: a path, or that step."""
    tokenizer: Any
    """Folder with tokenizer.json and tokenizer_config.json: a path, or the step that fetches it."""
    template_name: Any = "template"
    """What to call the template in messages; wrap it in unhashed(), only the text bears
    identity."""
    num_processes: Any = unhashed(None)  # noqa: RUF009  frozen
    """Processes on each machine, >= 1, wrapped in unhashed(); None: one for each core."""
    layout: int = _LAYOUT
    """Form of the output and rules that make it; part of identity: what older ones made is made again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.template:
            name = str(getattr(self.template_name, "value", self.template_name))
            check_generation_marks(name, self.template)


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
    from neve_chat.tokenization import tokenize_conversations  # lazy: tensorstore, tokenizers

    results = tokenize_conversations(
        input_path=str(config.input),
        output_path=output_path,
        options=TokenizeOptions(
            tokenizer_path=str(config.tokenizer),
            template_name=str(config.template_name),
            **{field.name: getattr(config, field.name) for field in fields(TokensConfig)},
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
