"""Step: how many rows and tokens each data set gives, and how many train steps that makes.

Reads row lengths only. Refuses here, before weights are fetched, what training could not do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neve.errors import InputError

if TYPE_CHECKING:
    import numpy as np

PACKINGS = ("separate", "packed")
_MAX_SEGMENTS = 64  # conversations of a packed row, as in training
LONG_CONVERSATIONS = ("drop", "truncate", "error")


@dataclass(frozen=True, kw_only=True)
class MixDatasetsConfig:
    """Data sets, their weights, and the shape of a batch."""

    names: tuple[str, ...]
    """Name of each data set."""
    caches: tuple[Any, ...]
    """Token caches, one per name: paths, or tokenize_chat steps."""
    weights: tuple[float, ...]
    """Share of the rows drawn from each data set, above 0; normalized to sum to 1."""
    seq_len: int
    """Positions per row, tokens."""
    batch_size: int
    """Rows per train step over all devices, 1 or more."""
    num_train_steps: int | None = None
    """Optimizer updates, 1 or more; None with num_train_epochs, or where training sets them."""
    num_train_epochs: float | None = None
    """Passes, above 0: an epoch draws as many rows as the data sets hold together."""
    packing: str = "separate"
    """Conversations per row: separate (one) or packed (as many as fit, in their order)."""
    long_conversations: str = "drop"
    """What happens to a row longer than seq_len: drop, truncate (its end) or error."""
    model_config: Any
    """Folder with the model's config.json and tokenizer.json: a path or a step."""

    def __post_init__(self) -> None:
        counts = {len(self.names), len(self.caches), len(self.weights)}
        if counts != {len(self.names)} or not self.names:
            raise InputError(
                "mixture: names, caches and weights must have one entry per data set, got "
                f"{len(self.names)}, {len(self.caches)} and {len(self.weights)}. "
                "Give as many of each."
            )
        for name, weight in zip(self.names, self.weights, strict=True):
            if not (math.isfinite(weight) and weight > 0):
                raise InputError(
                    f"mixture {name!r}: weight must be a number above 0, got {weight}. "
                    "Leave the data set out to train without it."
                )
        if self.packing not in PACKINGS:
            raise InputError(
                f"mixture: packing must be one of {', '.join(PACKINGS)}, got {self.packing!r}. "
                "Pass one of them."
            )
        if self.long_conversations not in LONG_CONVERSATIONS:
            raise InputError(
                f"mixture: long_conversations must be one of {', '.join(LONG_CONVERSATIONS)}, "
                f"got {self.long_conversations!r}. Pass one of them."
            )
        _check_amounts(self)


def mix_datasets(config: MixDatasetsConfig, output_path: str) -> dict[str, Any]:
    """The output holds plan.json: rows, tokens and share of each data set, and the train steps.

    Returns:
        The content of plan.json.

    Raises:
        InputError: seq_len or a token id is beyond the model, no row is left, or a row is too long
            and long_conversations is "error".
    """
    from neve import progress, storage

    _check_model(config)
    sources = [
        _read_source(name, str(cache), config)
        for name, cache in zip(config.names, config.caches, strict=True)
    ]
    num_rows = sum(source["rows_packed"] for source in sources)
    num_train_steps = config.num_train_steps
    if config.num_train_epochs is not None:
        num_train_steps = math.ceil(config.num_train_epochs * num_rows / config.batch_size)
    num_rows_drawn = (num_train_steps or 0) * config.batch_size
    _add_shares(sources, config.weights, num_rows_drawn)
    plan = {
        "format": 1,
        "seq_len": config.seq_len,
        "batch_size": config.batch_size,
        "num_rows": num_rows,
        "num_train_steps": num_train_steps,
        "num_train_epochs": num_rows_drawn / num_rows if num_train_steps else None,
        "long_conversations": config.long_conversations,
        "sources": sources,
    }
    storage.write_json(storage.join(output_path, "plan.json"), plan)
    progress.message(_table(plan))
    return plan


def _check_amounts(config: MixDatasetsConfig) -> None:
    for field in ("seq_len", "batch_size"):
        if getattr(config, field) < 1:
            raise InputError(
                f"mixture: {field} must be 1 or more, got {getattr(config, field)}. Raise it."
            )
    steps, epochs = config.num_train_steps, config.num_train_epochs
    if steps is not None and epochs is not None:
        raise InputError(
            "mixture: at most one of num_train_steps and num_train_epochs must be given, got "
            f"{steps} and {epochs}. Set one and leave the other None."
        )
    if steps is not None and steps < 1:
        raise InputError(f"mixture: num_train_steps must be 1 or more, got {steps}. Raise it.")
    if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
        raise InputError(
            f"mixture: num_train_epochs must be a number above 0, got {epochs}. Raise it."
        )


def _check_model(config: MixDatasetsConfig) -> None:
    from neve import storage

    folder = str(config.model_config)
    model = storage.read_json(storage.join(folder, "config.json"))
    longest = model.get("max_position_embeddings", model.get("max_seq_len"))
    if longest is not None and config.seq_len > longest:
        raise InputError(
            f"mixture: seq_len must be at most the model's max_position_embeddings {longest:,}, "
            f"got {config.seq_len:,}. Lower seq_len to {longest}."
        )
    path = storage.join(folder, "tokenizer.json")
    vocab_size = model.get("vocab_size")
    if vocab_size is None or not storage.exists(path):
        return
    tokenizer = storage.read_json(path)
    ids = [token["id"] for token in tokenizer.get("added_tokens", ())]
    vocab = tokenizer.get("model", {}).get("vocab", {})
    largest = max([*ids, *(vocab.values() if isinstance(vocab, dict) else (len(vocab) - 1,))])
    if largest >= vocab_size:
        raise InputError(
            f"mixture: every token id must be below the model's vocab_size {vocab_size:,}, got "
            f"{largest:,} in tokenizer.json. Use the tokenizer that belongs to the model."
        )


def _read_source(name: str, cache: str, config: MixDatasetsConfig) -> dict[str, Any]:
    """Return the row and token counts of one data set under the policy for long rows."""
    import numpy as np  # lazy like tensorstore below: planning reads this module
    from neve import storage
    from neve_chat.cache_reader import read_row_lengths, read_trained_tokens

    split = storage.join(cache, "train")
    lengths = read_row_lengths(split)
    is_long = lengths > config.seq_len
    num_long = int(is_long.sum())
    longest = int(lengths.max()) if len(lengths) else 0
    if num_long and config.long_conversations == "error":
        raise InputError(
            f"mixture {name!r}: every conversation must fit in seq_len {config.seq_len:,} tokens, "
            f"got {num_long:,} of {len(lengths):,} that are longer, up to {longest:,}. "
            'Raise seq_len or set long_conversations to "drop" or "truncate".'
        )
    is_used = ~is_long if config.long_conversations == "drop" else np.ones_like(is_long)
    if not is_used.any():
        raise InputError(
            f"mixture {name!r}: at least one conversation must be left, got {len(lengths):,} rows "
            f"of which {num_long:,} are longer than seq_len {config.seq_len:,}, up to {longest:,}. "
            "Raise seq_len or leave the data set out."
        )
    trained: np.ndarray = read_trained_tokens(split, lengths, config.seq_len)
    return {
        "name": name,
        "rows": len(lengths),
        "rows_used": int(is_used.sum()),
        "rows_packed": _count_rows(lengths, is_used, config),
        "too_long": num_long,
        "longest": longest,
        "tokens": int(np.minimum(lengths, config.seq_len)[is_used].sum()),
        "trained_tokens": int(trained[is_used].sum()),
    }


def _count_rows(lengths: np.ndarray, is_used: np.ndarray, config: MixDatasetsConfig) -> int:
    """Return how many rows training makes of the conversations: greedy, in their order."""
    if config.packing == "separate":
        return int(is_used.sum())
    num_rows = num_segments = filled = 0
    for length, used in zip(lengths.tolist(), is_used.tolist(), strict=True):
        fits = num_segments and filled + length <= config.seq_len and num_segments < _MAX_SEGMENTS
        if not used:
            num_segments = 0  # a dropped conversation ends the row
        elif fits:
            num_segments, filled = num_segments + 1, filled + length
        else:
            num_rows, num_segments, filled = num_rows + 1, 1, length
    return num_rows


def _add_shares(
    sources: list[dict[str, Any]], weights: tuple[float, ...], num_rows_drawn: int
) -> None:
    """Add weight (share of rows), passes and share (of trained tokens) to every source."""
    total = math.fsum(weights)
    for source, weight in zip(sources, weights, strict=True):
        source["weight"] = weight / total
        drawn = num_rows_drawn * source["weight"]
        source["passes"] = drawn / source["rows_packed"] if num_rows_drawn else None
    amounts = [
        source["weight"] * source["trained_tokens"] / source["rows_packed"] for source in sources
    ]
    all_amounts = math.fsum(amounts)
    for source, amount in zip(sources, amounts, strict=True):
        source["share"] = amount / all_amounts if all_amounts else 0.0


def _table(plan: dict[str, Any]) -> str:
    header = ("data set", "rows", "tokens", "trained", "share", "passes")
    rows = [
        (
            source["name"],
            f"{source['rows_used']:,}",
            f"{source['tokens']:,}",
            f"{source['trained_tokens']:,}",
            f"{source['share']:.1%}",
            "-" if source["passes"] is None else f"{source['passes']:.2f}",
        )
        for source in plan["sources"]
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in [header, *rows]
    ]
    words = {"drop": "dropped", "truncate": "cut to it"}
    for source in plan["sources"]:
        if source["too_long"]:
            lines.append(
                f"{source['name']}: {source['too_long']:,} of {source['rows']:,} conversations are "
                f"longer than {plan['seq_len']:,} tokens (up to {source['longest']:,}) and are "
                f"{words[plan['long_conversations']]}"
            )
    if plan["num_train_steps"] is not None:
        lines.append(
            f"{plan['num_train_steps']:,} train steps of {plan['batch_size']:,} rows x "
            f"{plan['seq_len']:,} tokens, {plan['num_train_epochs']:.2f} epochs"
        )
    return "\n".join(lines)
