"""
What bears on the tokens of a conversation. Light on purpose: recipes import it to plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from neve_chat.errors import ChatInputError
from neve_chat.mixture_rules import TURN_POLICIES
from neve_chat.spans import LossOptions

__all__ = ["SPECIAL_TEXT_POLICIES", "TokenizeOptions", "TokensConfig"]

SPECIAL_TEXT_POLICIES = ("error", "drop", "keep", "escape")


@dataclass(frozen=True, kw_only=True)
class TokensConfig:
    """
    Template, loss and split, whatever the tokenizer.
    """

    template: str
    """Jinja text of the chat template, as load_template(...).text gives it; empty: the
    tokenizer's own."""
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
    """Tokens above which a conversation is shortened at turn borders, >= 2; None: it never is."""
    long_conversations: str = "first_turns"
    """How it is shortened: first_turns, last_turns or windows."""
    max_rejected_fraction: float = 0.05
    """Share of refused conversations above which the whole is refused, 0 to 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise ChatInputError(
                "tokenize: validation_fraction must be at least 0 and below 1, "
                f"got {self.validation_fraction}. Pass a share of the conversations."
            )
        if not 0 <= self.max_rejected_fraction <= 1:
            raise ChatInputError(
                "tokenize: max_rejected_fraction must be between 0 and 1, "
                f"got {self.max_rejected_fraction}. Pass a share of the conversations."
            )
        for name, allowed in (
            ("special_text", SPECIAL_TEXT_POLICIES),
            ("long_conversations", TURN_POLICIES),
        ):
            if getattr(self, name) not in allowed:
                raise ChatInputError(
                    f"tokenize: {name} must be one of {', '.join(allowed)}, got "
                    f"{getattr(self, name)!r}. Pass one of them."
                )
        if self.max_tokens is not None and self.max_tokens < 2:
            raise ChatInputError(
                f"tokenize: max_tokens must be 2 or more, got {self.max_tokens}. Raise it."
            )


@dataclass(frozen=True, kw_only=True)
class TokenizeOptions(TokensConfig):
    """
    The same with a tokenizer, and a name for the template.
    """

    tokenizer_path: str
    """Folder with tokenizer.json."""
    template_name: str = "template"
    """What to call the template in messages."""
