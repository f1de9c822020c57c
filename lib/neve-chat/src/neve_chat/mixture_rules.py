"""
What a mixture may be: the rules that a recipe is checked by, without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from neve_chat.errors import ChatInputError

__all__ = [
    "LONG_CONVERSATIONS",
    "MIXINGS",
    "PACKINGS",
    "TURN_POLICIES",
    "check_mixture",
    "resolve_mixing",
]

MIXINGS = ("concat", "weighted", "interleave_under", "interleave_over")
PACKINGS = ("separate", "packed")
TURN_POLICIES = ("first_turns", "last_turns", "windows")
"""Rules for long conversations that the tokenize step carries out: its rows fit already."""
LONG_CONVERSATIONS = ("drop", "truncate", "error", *TURN_POLICIES)


def resolve_mixing(mixing: str | None, weights: Sequence[float | None]) -> str:
    """
    The strategy that is meant: None is weighted if any data set has a weight, else concat.
    """
    if mixing is not None:
        return mixing
    return "concat" if all(weight is None for weight in weights) else "weighted"


def check_mixture(
    what: str,
    *,
    names: Sequence[str],
    mixing: str | None,
    weights: Sequence[float | None],
    repeats: Sequence[float],
    max_conversations: Sequence[int | None],
) -> str:
    """
    The resolved strategy, once strategy, weights and repeats fit together.

    Args:
        what: what to call the mixture in messages.
        names: name of each data set; the other sequences have one entry for each.
        mixing: one of MIXINGS, or None.
        weights: shares (weighted) or probabilities (interleave), or None.
        repeats: times that an epoch of concat holds each conversation.
        max_conversations: cap of each data set, or None.

    Raises:
        ChatInputError: a value is out of its range, or has no meaning under the strategy.
    """
    lengths = {len(weights), len(repeats), len(max_conversations), len(names)}
    if not names or len(lengths) > 1 or len(set(names)) < len(names):
        raise ChatInputError(
            f"{what}: must have one or more data sets of different names, each with one weight, "
            f"repeat and max_conversations, got names {', '.join(names)} with {len(weights)}, "
            f"{len(repeats)} and {len(max_conversations)} of them. Give as many of each."
        )
    resolved = resolve_mixing(mixing, weights)
    if resolved not in MIXINGS:
        raise ChatInputError(
            f"{what}: mixing must be one of {', '.join(MIXINGS)}, got {mixing!r}. Pick one of them."
        )
    for name, weight, repeat, cap in zip(names, weights, repeats, max_conversations, strict=True):
        which = f"{what}, data set {name!r}"
        if weight is not None and not (math.isfinite(weight) and weight > 0):
            raise ChatInputError(
                f"{which}: weight must be a number above 0, got {weight}. "
                "Leave the data set out to train without it."
            )
        if not (math.isfinite(repeat) and repeat > 0):
            raise ChatInputError(
                f"{which}: repeat must be a number above 0, got {repeat}. "
                "Leave the data set out to train without it."
            )
        if cap is not None and cap < 1:
            raise ChatInputError(
                f"{which}: max_conversations must be 1 or more, got {cap}. Raise it, or None."
            )
        if repeat != 1 and resolved != "concat":
            raise ChatInputError(
                f"{which}: repeat must be 1 unless mixing is concat, got {repeat} with {resolved}. "
                "Change the weights instead."
            )
        if (weight is None) != (resolved == "concat"):
            rule = "must be None with" if resolved == "concat" else "must be given with"
            advice = (
                "Set mixing to weighted, or say repeat."
                if resolved == "concat"
                else "Give every data set one."
            )
            raise ChatInputError(f"{which}: weight {rule} {resolved}, got {weight}. {advice}")
    total = math.fsum(weight or 0 for weight in weights)
    if resolved.startswith("interleave") and not math.isclose(total, 1, abs_tol=1e-8):
        told = ", ".join(f"{name}={weight}" for name, weight in zip(names, weights, strict=True))
        raise ChatInputError(
            f"{what}: weights are probabilities with {resolved} and must sum to 1, got {total:g} "
            f"({told}). Rescale them."
        )
    return resolved
