"""
Checks a token cache that someone else may have made, before anything is trained on it.

Differences between what the cache was made with and what a recipe uses (tokenizer, size of the
vocabulary, chat template) are errors unless each is accepted on purpose, by the words that the
error gives.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from neve import storage

from neve_chat.cache_ledger import LEDGER_NAME, CachePart, read_ledger, split_path
from neve_chat.cache_reader import FIELDS, CacheReader
from neve_chat.errors import ChatInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neve_chat.tokens import ChatTokenizer

__all__ = ["CacheFacts", "cache_splits", "check_cache"]

SPLITS = ("train", "validation")
_TYPES = {"data": "int32", "offsets": "int64"}
_SHOWN_CHARS = 40


@dataclass(frozen=True, kw_only=True)
class CacheFacts:
    """
    What one split of a cache holds.
    """

    rows: int
    """Conversations."""
    tokens: int
    """Tokens of all rows."""
    trained_tokens: int | None
    """Tokens with mask 1; None where not all rows were read."""
    untrained_rows: int | None
    """Rows without a trained token; None where not all rows were read."""
    longest: int
    """Tokens of the longest row."""
    layout: str
    """consolidated or sharded."""
    tokenizer: str | None
    """Name or path of the tokenizer, as the cache records it."""
    template_digest: str | None
    """sha256 of the chat template that the cache records."""

    def as_json(self) -> dict[str, Any]:
        """
        All fields.
        """
        return dataclasses.asdict(self)


def cache_splits(path: str) -> dict[str, str]:
    """
    The folders of a cache's splits: `train` and, if there, `validation` below it, or a flat cache,
    which is the train split itself.

    Args:
        path: folder of the cache.

    Raises:
        ChatInputError: it holds neither.
    """
    found = {split: split_path(path, split) for split in SPLITS}
    found = {split: folder for split, folder in found.items() if storage.exists(folder)}
    if "train" not in found:
        names = storage.list_names(path)
        raise ChatInputError(
            f"token cache {path}: must hold {LEDGER_NAME} or a folder train with one, got "
            f"{', '.join(names[:10]) or 'nothing'}. Give the folder that Levanter knows as cache_dir."
        )
    return found


def check_cache(
    path: str,
    *,
    tokenizer: ChatTokenizer | None = None,
    template: str | None = None,
    accept: Sequence[str] = (),
    full: bool = False,
) -> CacheFacts:
    """
    The facts of a finished cache that fits: counts, offsets, types, ids and masks are right.

    Memory depends on the number of rows (some 8 bytes each), not on the number of tokens.

    Args:
        path: folder of one split, with `shard_ledger.json`, in either layout.
        tokenizer: the one that the recipe uses; ids must be below its limit.
        template: text of the chat template that the recipe uses.
        accept: differences to allow, each as the error words it, such as
            "tokenizer=marin-community/marin-tokenizer".
        full: read all ids and masks; False reads the ledger, all offsets and the first few million
            tokens.

    Raises:
        ChatInputError: the first thing that is wrong with the cache, or all differences to the
            recipe.
    """
    num_rows, parts = read_ledger(path, FIELDS)
    if not num_rows:
        raise _wrong(path, "must hold at least one row", "none", "Leave the cache out")
    for part in parts:
        _check_arrays(part)
    ledger = storage.read_json(storage.join(path, LEDGER_NAME))
    made_with = (ledger.get("metadata") or {}).get("preprocessor_metadata") or {}
    _refuse_differences(path, made_with, tokenizer, template, accept)
    reader = CacheReader(path)
    lengths = reader.lengths
    if not lengths.all():
        row = int(np.argmin(lengths))
        raise _wrong(path, "every row must have a token", f"none in row {row:,}", _MAKE_AGAIN)
    trained, untrained = _check_tokens(reader, tokenizer, full=full)
    recorded = made_with.get("chat_template")
    return CacheFacts(
        rows=num_rows,
        tokens=int(lengths.sum()),
        trained_tokens=trained,
        untrained_rows=untrained,
        longest=int(lengths.max()),
        layout=ledger.get("layout", "consolidated"),
        tokenizer=made_with.get("tokenizer"),
        template_digest=None if recorded is None else _digest(recorded),
    )


_MAKE_AGAIN = "Tokenize again"


def _check_arrays(part: CachePart) -> None:
    """
    Refuse a cache of another kind, or of other types than Levanter's chat format has.
    """
    if not part.num_rows:
        return
    names = [name for name in storage.list_names(part.path) if not name.startswith(".")]
    if not set(FIELDS) <= set(names):
        raise _wrong(
            part.path,
            f"must be a chat cache with the arrays {' and '.join(FIELDS)}",
            ", ".join(names) or "nothing",
            "Adopt a cache of Levanter's chat format",
        )
    for field in FIELDS:
        for array, wanted in _TYPES.items():
            metadata = storage.join(part.path, field, array, "zarr.json")
            if not storage.exists(metadata):
                raise _wrong(metadata, "must exist", "nothing", _MAKE_AGAIN)
            found = storage.read_json(metadata)["data_type"]
            if found != wanted:
                raise _wrong(metadata, f"data_type must be {wanted}", str(found), _MAKE_AGAIN)


def _check_tokens(
    reader: CacheReader, tokenizer: ChatTokenizer | None, *, full: bool
) -> tuple[int | None, int | None]:
    """
    Check ids and masks; trained tokens and rows without one, or None if not all rows were read.
    """
    limit = np.iinfo(np.int32).max if tokenizer is None else tokenizer.id_limit - 1
    seen = trained = untrained = 0
    for first, lengths, ids, mask in itertools.islice(reader.blocks(), None if full else 1):
        _refuse_first(reader.split_path, first, lengths, ids, (ids < 0) | (ids > limit), limit)
        _refuse_first(reader.split_path, first, lengths, mask, (mask & ~1) != 0, None)
        sums = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
        ends = np.cumsum(lengths)
        untrained += int((sums[ends] == sums[ends - lengths]).sum())
        trained += int(sums[-1])
        seen += len(lengths)
    if seen < reader.num_rows:
        return None, None
    if not trained:
        raise _wrong(
            reader.split_path,
            "at least one token must be trained",
            f"mask 0 on all of {reader.num_rows:,} rows",
            "Use a template with generation marks and tokenize again",
        )
    return trained, untrained


def _refuse_first(
    path: str,
    first_row: int,
    lengths: np.ndarray,
    values: np.ndarray,
    is_bad: np.ndarray,
    limit: int | None,
) -> None:
    """
    Raise for the first bad value, if any, naming its row and place.
    """
    if not is_bad.any():
        return
    at = int(np.argmax(is_bad))
    ends = np.cumsum(lengths)
    row = int(np.searchsorted(ends, at, side="right"))
    place = f"{int(values[at])} at token {at - int(ends[row] - lengths[row])} of row {first_row + row:,}"
    if limit is None:
        raise _wrong(path, "every mask must be 0 or 1", place, _MAKE_AGAIN)
    action = "Use the tokenizer that the cache was made with"
    raise _wrong(path, f"every token id must be from 0 to {limit:,}", place, action)


def _refuse_differences(
    path: str,
    made_with: dict[str, Any],
    tokenizer: ChatTokenizer | None,
    template: str | None,
    accept: Sequence[str],
) -> None:
    """
    Raise for everything in which the cache differs from the recipe and that is not accepted.
    """
    differences: dict[str, str] = {}
    if tokenizer is not None:
        differences |= _tokenizer_differences(path, made_with, tokenizer)
    recorded = made_with.get("chat_template")
    if template is not None and recorded != template:
        word = "none" if recorded is None else f"sha256:{_digest(recorded)[:12]}"
        ours = f"the recipe has sha256:{_digest(template)[:12]}"
        differences[f"chat_template={word}"] = (
            f"chat template: the cache records none, {ours}"
            if recorded is None
            else f"chat template: the cache has {word}, {ours}; {_first_difference(recorded, template)}"
        )
    left = {word: text for word, text in differences.items() if word not in accept}
    if left:
        words = ", ".join(f'"{word}"' for word in left)
        raise ChatInputError(
            f"token cache {path}: must have been made with the recipe's tokenizer and template, got "
            f"{' | '.join(left.values())}. Change the recipe, or accept this on purpose in its "
            f"source: accept=({words},)."
        )


def _tokenizer_differences(
    path: str, made_with: dict[str, Any], tokenizer: ChatTokenizer
) -> dict[str, str]:
    differences = {}
    name, size = made_with.get("tokenizer"), made_with.get("vocab_size")
    ours = hashlib.sha256(tokenizer.json_bytes).hexdigest()
    theirs = _tokenizer_digest(path, name)
    if theirs != ours:
        shown = "nothing of its tokenizer" if name is None else repr(name)
        content = "whose tokenizer.json isn't there" if theirs is None else f"sha256:{theirs[:12]}"
        differences[f"tokenizer={name or 'none'}"] = (
            f"tokenizer: the cache records {shown} ({content}), the recipe has sha256:{ours[:12]}"
        )
    if size is not None and size != tokenizer.vocab_size:
        differences[f"vocab_size={size}"] = (
            f"vocabulary: the cache has {size:,} tokens, the recipe {tokenizer.vocab_size:,}"
        )
    return differences


def _tokenizer_digest(path: str, name: str | None) -> str | None:
    """
    sha256 of the tokenizer.json that made a cache, where its statistics or its folder tell it.
    """
    for folder in (path, path.rstrip("/").rpartition("/")[0]):
        stats = storage.join(folder, "stats.json")
        if storage.exists(stats):
            return storage.read_json(stats).get("tokenizer_digest")
    if name is None:
        return None
    file = storage.join(name, "tokenizer.json")
    return hashlib.sha256(storage.read_bytes(file)).hexdigest() if storage.exists(file) else None


def _first_difference(first: str, second: str) -> str:
    pairs = zip(first, second, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    cut = slice(max(0, same - _SHOWN_CHARS // 2), same + _SHOWN_CHARS // 2)
    return f"they part at character {same:,}: {first[cut]!r} and {second[cut]!r}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _wrong(path: str, rule: str, got: str, action: str) -> ChatInputError:
    return ChatInputError(f"token cache {path}: {rule}, got {got}. {action}.")
