"""
Rendered conversations to token ids and loss masks, equal to transformers' and Levanter's.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from neve import storage

from neve_chat.encoded import Tokens, text_pieces
from neve_chat.errors import ChatInputError
from neve_chat.referee import Referee
from neve_chat.render import Rendered

__all__ = ["ENCODERS", "ChatTokenizer", "Tokens"]


ENCODERS = ("auto", "tokenizers", "fastokens")
# Loading fastokens takes seconds, which is what tokenizers needs for some megabytes.
_FAST_FROM_CHARS = 1_000_000


class ChatTokenizer:
    """
    A `tokenizer.json` with the special tokens that templates name. Not for several threads at once.

    `encode_rendered` starts with the tokenizers library. Once it has seen a megabyte of text it
    goes over to fastokens, where that can be exact, and lets tokenizers check a sample: the
    results are the same. `encoder_report` tells whether that held.
    """

    def __init__(self, path: str, *, encoder: str = "auto", num_threads: int | None = None) -> None:
        """
        Args:
            path: folder with tokenizer.json and, as a rule, tokenizer_config.json.
            encoder: auto; tokenizers; or fastokens, which is then used from the first text on.
            num_threads: of the encoders, at least 1; None for one per core. It holds for the whole
                process and only if nothing in it has been encoded yet.

        Raises:
            ChatInputError: no tokenizer.json there, one that cannot be read, or one for which
                fastokens is asked and not exact.
        """
        if encoder not in ENCODERS:
            raise ChatInputError(
                f"encoder of tokenizer {path}: must be one of {', '.join(ENCODERS)}, got "
                f"{encoder!r}. Pass auto."
            )
        if num_threads is not None:
            if num_threads < 1:
                raise ChatInputError(
                    f"num_threads of tokenizer {path}: must be at least 1, got {num_threads}. "
                    "Pass 1 where several processes run."
                )
            for name in ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
                os.environ[name] = str(num_threads)
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
        self.special_texts = tuple(added[index].content for index in sorted(self.special_ids))
        self.has_normalizer = self._tokenizer.normalizer is not None
        self.id_limit: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._referee = Referee(
            self.json_bytes,
            self._encode_slowly,
            self.special_texts,
            threshold={"auto": _FAST_FROM_CHARS, "tokenizers": None, "fastokens": 0}[encoder],
        )
        if encoder == "fastokens" and (reason := self._referee.load()):
            raise ChatInputError(
                f"encoder of tokenizer {path}: fastokens must give what tokenizers gives, "
                f"got: {reason}. Pass auto or tokenizers."
            )

    @property
    def encoder_name(self) -> str:
        """
        Which library encodes the next conversations: tokenizers or fastokens.
        """
        return "fastokens" if self._referee.is_fast else "tokenizers"

    @property
    def num_refereed(self) -> int:
        """
        How many conversations both libraries have encoded.
        """
        return self._referee.num_refereed

    @property
    def num_differences(self) -> int:
        """
        In how many conversations the fast encoder was found wrong; what was returned for them is
        right.
        """
        return self._referee.num_differences

    @property
    def suspect(self) -> bool:
        """
        Whether conversations returned earlier by this object may be wrong: a later one showed that
        the fast encoder is. Encode them again with `encoder="tokenizers"`.
        """
        return self._referee.suspect

    @functools.cached_property
    def keeps_text_at_cuts(self) -> bool:
        """
        Whether the text stays the same where it is cut (`Rendered.cuts`). Tokenizers that put a
        space in front of each text would add one there.
        """
        whole, *parts = self.encode(["ab", "a", "b"])
        return self.text(whole) == self.text([index for part in parts for index in part])

    def encoder_report(self) -> dict[str, Any]:
        """
        Encoder, counts of the referee, and why fastokens is not in use, as JSON.
        """
        return {
            "encoder": self.encoder_name,
            "num_fast": self._referee.num_fast,
            "num_refereed": self.num_refereed,
            "num_differences": self.num_differences,
            "suspect": self.suspect,
            "message": self._referee.message,
        }

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

        A text with cuts is encoded piece by piece.
        """
        return self._referee.encode(conversations)

    def text(self, ids: Sequence[int] | np.ndarray) -> str:
        """
        Ids as text, special tokens included.
        """
        return self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=False)

    def num_special(self, tokens: Tokens) -> int:
        """
        How many of a conversation's ids are special tokens.
        """
        return int(np.isin(tokens.ids, sorted(self.special_ids)).sum())

    def _encode_slowly(self, conversations: Sequence[Rendered]) -> list[Tokens]:
        pieces = [text_pieces(rendered) for rendered in conversations]
        encodings = iter(
            self._tokenizer.encode_batch(
                [piece for parts in pieces for piece in parts], add_special_tokens=False
            )
        )
        return [
            _tokens(list(itertools.islice(encodings, len(parts))), rendered)
            for parts, rendered in zip(pieces, conversations, strict=True)
        ]


def _tokens(encodings: Sequence[Any], rendered: Rendered) -> Tokens:
    """
    Args:
        encodings: of the pieces, in order.
    """
    first_chars = (0, *rendered.cuts)
    first_tokens = [0, *itertools.accumulate(len(encoding.ids) for encoding in encodings)]

    def token_at(characters: range) -> int | None:
        """
        Token of the first of these that has one; normalizers may leave some without.
        """
        for character in characters:
            piece = bisect.bisect_right(first_chars, character) - 1
            token = encodings[piece].char_to_token(character - first_chars[piece])
            if token is not None:
                return first_tokens[piece] + token
        return None

    ids = np.concatenate([np.array(encoding.ids, dtype=np.int32) for encoding in encodings])
    mask = np.zeros(len(ids), dtype=np.int32)
    for start, end in rendered.spans:
        first = token_at(range(start, end))
        last = token_at(range(end - 1, start - 1, -1))
        if first is not None and last is not None:
            mask[first : last + 1] = 1
    return Tokens(ids, mask)


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
