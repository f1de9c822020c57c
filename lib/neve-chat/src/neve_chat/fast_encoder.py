"""
Ids by fastokens, masks from the byte length of each token: no offsets, no Python per token.

Exact for byte-level BPE only, because there the bytes of the tokens are the bytes of the text.
`reason_against` says whether a tokenizer is of that kind; whether fastokens then gives the right
ids is for the referee in `neve_chat.tokens` to see.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from neve_chat.encoded import Tokens, text_pieces
from neve_chat.render import Rendered

__all__ = ["FastEncoder", "reason_against"]

# What tokenizers trims from a token's offsets: the byte-level space, and Unicode's white space.
_SPACES = (
    "\u0120\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_ALPHABET = {chr(byte) for byte in _PRINTABLE} | {
    chr(0x100 + index) for index in range(256 - len(_PRINTABLE))
}


def reason_against(tokenizer: Mapping[str, Any]) -> str | None:
    """
    Why this encoder could not be exact for a tokenizer; None if nothing speaks against it.

    Args:
        tokenizer: content of tokenizer.json.
    """
    return next(_reasons(tokenizer), None)


def _reasons(tokenizer: Mapping[str, Any]) -> Iterator[str]:
    model = tokenizer["model"]
    # Old files leave the type out; only BPE has merges.
    if model.get("type", "BPE" if "merges" in model else None) != "BPE":
        yield f"its model is {model.get('type')}, not BPE"
        return
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            yield f"its model has {key}"
    if not model["vocab"].keys() >= _ALPHABET:
        yield "its vocabulary lacks some of the 256 bytes"
    normalizers = _flat(tokenizer.get("normalizer"), "normalizers")
    if any(part["type"] != "NFC" for part in normalizers):
        yield "its normalizer is not NFC"
    *splits, last = _flat(tokenizer.get("pre_tokenizer"), "pretokenizers") or [{"type": "none"}]
    if last["type"] != "ByteLevel" or last.get("add_prefix_space"):
        yield "its pre-tokenizer does not end in ByteLevel without a prefix space"
    if any(
        part["type"] not in ("Split", "Digits") or part.get("behavior") == "Removed"
        for part in splits
    ):
        yield "its pre-tokenizer does more than split"
    for part in _flat(tokenizer.get("post_processor"), "processors"):
        if part["type"] not in ("ByteLevel", "TemplateProcessing"):
            yield f"its post-processor has {part['type']}"
        if part.get("trim_offsets") and part.get("add_prefix_space"):
            yield "its post-processor trims a prefix space"
    for token in tokenizer.get("added_tokens") or []:
        if any(token.get(key) for key in ("lstrip", "rstrip", "single_word")):
            yield f"its added token {token['content']!r} takes in the text around it"
        if normalizers and not unicodedata.is_normalized("NFC", token["content"]):
            yield f"its added token {token['content']!r} is not NFC"


def _flat(part: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [inner for entry in part[key] for inner in _flat(entry, key)]


class FastEncoder:
    """
    fastokens with masks, for a tokenizer that `reason_against` has nothing against.
    """

    def __init__(self, json_text: str, tokenizer: Mapping[str, Any]) -> None:
        """
        Loads fastokens, which takes seconds for a large vocabulary.

        Args:
            json_text: tokenizer.json.
            tokenizer: its content.

        Raises:
            ValueError: fastokens cannot load it.
        """
        import fastokens  # seconds to set up, and small inputs never need it

        self._encoder = fastokens.Tokenizer.from_json_str(json_text)
        self._encoder.no_truncation()
        self._encoder.no_padding()
        self._is_nfc = tokenizer.get("normalizer") is not None
        self._is_trimmed = is_trimmed = any(
            part.get("trim_offsets")
            for part in _flat(tokenizer.get("post_processor"), "processors")
        )
        sizes = np.zeros((3, 1 + max(_ids(tokenizer))), dtype=np.int32)
        for token, index in tokenizer["model"]["vocab"].items():
            sizes[:, index] = _sizes(token, len, is_trimmed)
        for added in tokenizer.get("added_tokens") or []:
            sizes[:, added["id"]] = _sizes(added["content"], _num_utf8_bytes, is_trimmed)
        self._num_bytes, self._num_leading, self._num_trailing = sizes

    def accepts(self, text: str) -> bool:
        """
        Whether the bytes of this text's tokens are its own bytes, not those of a normal form.
        """
        return not self._is_nfc or text.isascii() or unicodedata.is_normalized("NFC", text)

    def encode(self, conversations: Sequence[Rendered]) -> list[Tokens]:
        """
        Ids and masks, up to the first conversation that went wrong.

        Args:
            conversations: with texts that are accepted.

        Returns:
            Those of each conversation before the first whose tokens do not sum to its bytes.

        Raises:
            ValueError: fastokens gave up on a text.
        """
        pieces: list[str] = []
        first_pieces = [0]
        for rendered in conversations:
            pieces += text_pieces(rendered)
            first_pieces.append(len(pieces))
        raw_ids, raw_offsets = self._encoder.encode_batch_flat(pieces)
        ids = np.frombuffer(raw_ids, np.uint32)
        if ids.max(initial=0) >= len(self._num_bytes):
            raise ValueError("an id beyond the vocabulary")
        ids = ids.view(np.int32)
        token_offsets = np.frombuffer(raw_offsets, np.int64)
        encoded = {
            index: np.frombuffer(piece.encode("utf-8"), np.uint8)
            for index, piece in enumerate(pieces)
            if not piece.isascii()
        }
        sizes = (len(encoded.get(index, piece)) for index, piece in enumerate(pieces))
        byte_offsets = np.array([0, *itertools.accumulate(sizes)], dtype=np.int64)
        # int32 where it is enough: half the memory to go through.
        kind = np.int32 if byte_offsets[-1] < 2**31 - 2**16 else np.int64
        edges = np.zeros(len(ids) + 1, dtype=kind)
        num_bytes = self._num_bytes.take(ids.astype(np.intp), mode="clip")  # faster, clips nothing
        np.cumsum(num_bytes, out=edges[1:])
        wrong = np.flatnonzero(edges[token_offsets] != byte_offsets)
        num_good = len(conversations)
        if len(wrong):
            num_good = int(np.searchsorted(first_pieces, wrong[0], side="left")) - 1
        text = np.zeros(byte_offsets[-1], np.uint8)  # what is ASCII may be any ASCII
        for index, data in encoded.items():
            text[byte_offsets[index] : byte_offsets[index + 1]] = data
        good = conversations[:num_good]
        # Of the same kind, or each search would convert the edges of all tokens.
        spans = _byte_spans(good, text).astype(kind)
        mask = self._mask(ids, edges, spans, text)
        borders = token_offsets[first_pieces].tolist()
        return [
            Tokens(ids[start:end], mask[start:end])
            for start, end in itertools.pairwise(borders[: num_good + 1])
        ]

    def _mask(
        self, ids: np.ndarray, edges: np.ndarray, spans: np.ndarray, text: np.ndarray
    ) -> np.ndarray:
        """
        1 from the token with the span's first character to the first token with its last one.

        Args:
            ids: int32[token].
            edges: int[token + 1], the byte at which each starts, and the end.
            spans: int[span, 2], bytes, half-open, of the edges' kind.
            text: uint8[byte], as in `_byte_spans`.
        """
        starts, ends, numbers = edges[:-1], edges[1:], None
        if self._is_trimmed:
            starts, ends = starts + self._num_leading[ids], ends - self._num_trailing[ids]
            # A token of spaces alone has no characters.
            numbers = np.flatnonzero(starts < ends)
            starts, ends = starts[numbers], ends[numbers]
        first = np.searchsorted(ends, spans[:, 0], side="right")
        behind = np.searchsorted(starts, spans[:, 1], side="left")
        has_token = first < behind
        first, behind = first[has_token], behind[has_token]
        byte = np.minimum(spans[has_token, 1], ends[behind - 1]) - 1
        for _ in range(3):  # to the first byte of the character
            byte -= (text[byte] & 0xC0) == 0x80
        last = np.searchsorted(ends, byte, side="right")
        if numbers is not None:
            first, last = numbers[first], numbers[last]
        # A token of two spans begins the run of the second one no earlier than the first one ends.
        borders = np.maximum.accumulate(np.column_stack([first, last + 1]).ravel())
        runs = np.diff(borders, prepend=0, append=len(ids))
        return np.repeat(np.resize(np.array([0, 1], dtype=np.int32), len(runs)), runs)


def _byte_spans(conversations: Sequence[Rendered], text: np.ndarray) -> np.ndarray:
    """
    int64[span, 2]: the spans of all conversations as bytes of the joined text.

    Args:
        conversations: with their spans.
        text: uint8[byte], of these conversations and more; exact where it isn't ASCII.
    """
    pairs = [span for rendered in conversations for span in rendered.spans]
    starts = itertools.accumulate((len(rendered.text) for rendered in conversations), initial=0)
    counts = [len(rendered.spans) for rendered in conversations]
    shifts = np.repeat(np.array([*starts][:-1], dtype=np.int64), counts)
    characters = np.array(pairs, dtype=np.int64).reshape(-1, 2) + shifts[:, None]
    # A character is as many bytes further on as earlier ones have bytes behind their first.
    further = np.flatnonzero(text.view(np.int8) < -64)
    owners = further - np.arange(1, len(further) + 1)
    return characters + np.searchsorted(owners, characters)


def _ids(tokenizer: Mapping[str, Any]) -> Iterator[int]:
    yield from tokenizer["model"]["vocab"].values()
    yield from (added["id"] for added in tokenizer.get("added_tokens") or [])


def _sizes(token: str, size: Callable[[str], int], is_trimmed: bool) -> tuple[int, int, int]:
    """
    Bytes in all, in the spaces in front, in the spaces behind; these 0 if nothing is trimmed.
    """
    num_bytes = size(token)
    if not is_trimmed:
        return num_bytes, 0, 0
    leading = num_bytes - size(token.lstrip(_SPACES))
    return num_bytes, leading, num_bytes - size(token.rstrip(_SPACES))


def _num_utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8"))
