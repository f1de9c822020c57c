"""
Rendered conversations to token ids and loss masks, equal to transformers' and Levanter's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.render import Rendered

__all__ = ["ChatTokenizer", "Tokens"]


@dataclass(frozen=True)
class Tokens:
    """
    One tokenized conversation.
    """

    ids: np.ndarray
    """int32[token], 0 <= id < vocab_size."""
    mask: np.ndarray
    """int32[token], 1 where the token is trained."""

    @property
    def num_trained(self) -> int:
        """
        How many tokens are trained.
        """
        return int(self.mask.sum())


class ChatTokenizer:
    """
    A `tokenizer.json` with the special tokens that templates name.
    """

    def __init__(self, path: str) -> None:
        """
        Args:
            path: folder with tokenizer.json and, as a rule, tokenizer_config.json.

        Raises:
            ChatInputError: no tokenizer.json there, or one that cannot be read.
        """
        self.path = path
        file = storage.join(path, "tokenizer.json")
        if not storage.exists(file):
            raise ChatInputError(
                f"tokenizer {path}: must hold tokenizer.json, got no such file. "
                "Fetch the tokenizer's files, or convert a slow tokenizer to a fast one."
            )
        self.json_bytes = storage.read_bytes(file)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(self.json_bytes.decode("utf-8"))
        except Exception as error:  # tokenizers raises bare Exception for any damaged file
            raise ChatInputError(
                f"tokenizer {file}: must be a tokenizer of the tokenizers library, got: "
                f"{error}. Fetch it again."
            ) from error
        # A length limit in the file would cut conversations silently.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.special_tokens = _special_tokens(path)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.id_limit: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """
        Ids of each text, nothing added to what stands there.
        """
        return [
            encoding.ids
            for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]

    def encode_rendered(self, conversations: Sequence[Rendered]) -> list[Tokens]:
        """
        Ids and masks: a token is trained if its characters start in a trained span.
        """
        texts = [conversation.text for conversation in conversations]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            _tokens(encoding, rendered)
            for encoding, rendered in zip(encodings, conversations, strict=True)
        ]

    def text(self, ids: Sequence[int] | np.ndarray) -> str:
        """
        Ids as text, special tokens included.
        """
        return self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=False)


def _tokens(encoding: Any, rendered: Rendered) -> Tokens:
    ids = np.array(encoding.ids, dtype=np.int32)
    mask = np.zeros(len(ids), dtype=np.int32)
    for start, end in rendered.spans:
        first = _token_at(encoding, range(start, end))
        last = _token_at(encoding, range(end - 1, start - 1, -1))
        if first is not None and last is not None:
            mask[first : last + 1] = 1
    return Tokens(ids, mask)


def _token_at(encoding: Any, characters: range) -> int | None:
    """
    Token of the first of these characters that has one; normalizers may leave some without.
    """
    for character in characters:
        token = encoding.char_to_token(character)
        if token is not None:
            return token
    return None


def _special_tokens(path: str) -> dict[str, str]:
    """
    bos_token, eos_token and so on as text, as transformers would pass them to a template.
    """
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = storage.join(path, name)
        if not storage.exists(file):
            continue
        try:
            values = storage.read_json(file)
        except json.JSONDecodeError as error:
            raise ChatInputError(
                f"tokenizer {file}: must be JSON, got: {error}. Fetch it again."
            ) from error
        for key, value in values.items():
            text = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(text, str):
                found[key] = text
    return found
