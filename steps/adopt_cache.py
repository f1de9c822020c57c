"""
Step: an existing token cache becomes a data set of a recipe where it lies, once it is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["AdoptCacheConfig", "adopt_cache"]


@dataclass(frozen=True, kw_only=True)
class AdoptCacheConfig:
    """
    What the cache must fit.
    """

    tokenizer: Any
    """Folder with tokenizer.json that the recipe uses: a path, or the step that fetches it."""
    template: str
    """Jinja text of the chat template that the recipe uses and its export carries; empty: the
    tokenizer's own."""
    accept: tuple[str, ...] = ()
    """Differences to allow, each as the check's error words it."""


def adopt_cache(config: AdoptCacheConfig, output_path: str) -> dict[str, Any]:
    """
    All ids and masks of the cache at output_path are right, and fit tokenizer and template.

    Nothing is written: the step is made by `neve.adopt`, its output is the cache itself.

    Returns:
        The facts of each split, and `baselines` without a value, as tokenize_chat has them.

    Raises:
        ChatInputError: the cache is damaged, or was made with something else.
    """
    from neve import progress
    from neve_chat.cache_check import cache_splits, check_cache  # lazy: tensorstore
    from neve_chat.templates import tokenizer_template
    from neve_chat.tokens import ChatTokenizer  # lazy: tokenizers

    tokenizer = ChatTokenizer(str(config.tokenizer))
    template = config.template or tokenizer_template(str(config.tokenizer)).text
    results: dict[str, Any] = {}
    for split, path in cache_splits(output_path).items():
        facts = check_cache(
            path, tokenizer=tokenizer, template=template, accept=config.accept, full=True
        )
        results[split] = facts.as_json()
        progress.message(
            f"{split}: {facts.rows:,} conversations, {facts.tokens:,} tokens, "
            f"{facts.trained_tokens:,} of them trained; longest {facts.longest:,}"
        )
        if facts.untrained_rows:
            progress.message(f"{split}: {facts.untrained_rows:,} conversations train no token")
    results["baselines"] = {"unigram_loss": None, "bigram_loss": None}
    return results
