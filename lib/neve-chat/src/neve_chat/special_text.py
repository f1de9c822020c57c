"""
Text of special tokens inside the data: found, or kept from becoming special.

A web page or a log may hold "<|im_end|>". Encoded with the rest of a conversation it would be the
token that ends a turn, and trained as such.

    row with markers --escape--> row with tags in them --render--> text with tags
                     --unescape--> the same text without tags, cut where they broke a marker

Tags also stand where a string ends or begins with a part of a marker, so that none forms unseen
from two strings, or from a string and the template: a tag that broke nothing leaves no cut. So
`unescape(render(escape(row))).cuts` is empty exactly when no marker comes from the data. It isn't
seen when a template takes strings apart or changes letters to make a marker.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from neve_chat.encoded import text_pieces
from neve_chat.errors import ChatInputError
from neve_chat.render import Rendered
from neve_chat.row_texts import TEMPLATE_FIELDS, mapped_texts, row_texts, text_paths
from neve_chat.tokenize_options import SPECIAL_TEXT_POLICIES

__all__ = ["SpecialText"]

_MAX_CLEAN = 10_000
# Noncharacters of Unicode: never text, never white space, unchanged by JSON.
_TAGS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


class SpecialText:
    """
    The markers of a tokenizer, and what to do with those in the data. Not for several threads at
    once.
    """

    def __init__(
        self, special_texts: Iterable[str], policy: str, allowed: Iterable[str] = ()
    ) -> None:
        """
        Args:
            special_texts: markers, as a rule `ChatTokenizer.special_texts`.
            policy: error, drop, keep or escape; for the caller to follow.
            allowed: markers that the data holds on purpose, such as think tokens.

        Raises:
            ChatInputError: no such policy, or a marker that cannot be escaped.
        """
        if policy not in SPECIAL_TEXT_POLICIES:
            raise ChatInputError(
                f"policy for special tokens in text: must be one of {', '.join(SPECIAL_TEXT_POLICIES)}, got "
                f"{policy!r}. Pass error to see where they are."
            )
        every = sorted(set(special_texts) - {""}, key=len, reverse=True)
        allowed = frozenset(allowed)
        markers = [marker for marker in every if marker not in allowed]
        if policy == "escape" and markers and len(markers[-1]) == 1:
            raise ChatInputError(
                f"policy for special tokens in text: escape needs markers of 2 characters or "
                f"more, got {markers[-1]!r}. Allow it or choose another policy."
            )
        self.policy = policy
        self._every = _alternatives(every)
        self._markers = _alternatives(markers)
        self._stems = tuple({(marker[:1], marker[1:2], marker[:2]) for marker in markers})
        self._longest = max(map(len, markers), default=0)
        self._firsts = tuple(sorted({marker[0] for marker in markers}))
        self._lasts = tuple(sorted({marker[-1] for marker in markers}))
        self._ends = tuple(sorted({marker[-2:] for marker in markers}))
        parts = range(1, self._longest)
        self._prefixes = {m[:size] for m in markers for size in parts if size < len(m)}
        self._suffixes = {m[size:] for m in markers for size in parts if size < len(m)}
        self._tag = ""
        self._clean: set[str] = set()  # short texts without places: keys and roles

    def find(self, row: Mapping[str, Any]) -> list[tuple[str, str]]:
        """
        Where markers stand whole: (path such as messages[2].content, marker), in order.

        Args:
            row: canonical row; its messages, tools and chat_template_kwargs are looked at, the
                keys of objects too.
        """
        if not any(map(self._may_hold, itertools.chain.from_iterable(row_texts(row)))):
            return []
        return [
            (path, match[0])
            for field in TEMPLATE_FIELDS
            for path, text in text_paths(row.get(field), field)
            for match in self._markers.finditer(text)
        ]

    def escape(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        The row with a tag in each marker, and at each part of one where a string ends.

        Returns:
            A copy, or the row itself if it holds nothing of the kind.
        """
        self._tag = ""
        short, long = row_texts(row)
        short -= self._clean
        if not any(map(self._places, self._suspects(itertools.chain(short, long)))):
            if len(self._clean) < _MAX_CLEAN:
                self._clean |= short
            return row
        texts = [*row_texts(row)[0], *long]
        self._tag = next(
            tag for tag in _TAGS if not any(tag in text or _ascii(tag) in text for text in texts)
        )
        return {
            field: mapped_texts(value, self._tagged) if field in TEMPLATE_FIELDS else value
            for field, value in row.items()
        }

    def unescape(self, rendered: Rendered) -> Rendered:
        """
        The rendered text as it would be without tags, with cuts where they broke markers.

        Args:
            rendered: of the row that was escaped last.
        """
        if not self._tag:
            return rendered
        tags = re.compile(f"{self._tag}|{re.escape(_ascii(self._tag))}")
        found = [match.span() for match in tags.finditer(rendered.text)]
        if not found:
            return rendered
        starts = [start for start, _ in found]
        removed = [0, *itertools.accumulate(end - start for start, end in found)]

        def moved(position: int) -> int:
            return position - removed[bisect.bisect_left(starts, position)]

        text = tags.sub("", rendered.text)
        places = [moved(start) for start in starts]
        spans = ((moved(start), moved(end)) for start, end in rendered.spans)
        cuts = {moved(cut) for cut in rendered.cuts}
        for start, end in self._overlapping(text):
            first, last = bisect.bisect_right(places, start), bisect.bisect_left(places, end)
            cuts.update(places[first:last])
        return Rendered(
            text, tuple((start, end) for start, end in spans if start < end), tuple(sorted(cuts))
        )

    def num_markers(self, rendered: Rendered) -> int:
        """
        How many special tokens the text is meant to hold, allowed ones included. More special ids
        than that come from text that the tokenizer's normalizer made a marker.
        """
        return sum(len(self._every.findall(piece)) for piece in text_pieces(rendered))

    def _may_hold(self, text: str) -> bool:
        # A loop, because any() would take most of the time of short strings.
        for first, second, stem in self._stems:  # noqa: SIM110
            # One character is found ten times faster than two.
            if second in text and first in text and stem in text:
                return True
        return False

    def _suspects(self, texts: Iterable[str]) -> Iterator[str]:
        """
        Those that may have `_places`; a quick look, because most have none.
        """
        firsts, lasts, ends, longest = self._firsts, self._lasts, self._ends, self._longest
        may_hold = self._may_hold
        for text in texts:
            # A part of a marker that is longer than one character holds its first or last two.
            if may_hold(text) or text.rstrip().endswith(firsts):
                yield text
                continue
            head = text.lstrip()[:longest]
            if head.startswith(lasts):
                yield text
                continue
            for end in ends:  # any() would take most of the time
                if end in head:
                    yield text
                    break

    def _overlapping(self, text: str) -> Iterator[tuple[int, int]]:
        """
        From and to where the longest marker reaches, for each character that begins one.
        """
        match = self._markers.search(text)
        while match:
            yield match.span()
            match = self._markers.search(text, match.start() + 1)

    def _places(self, text: str) -> list[int]:
        """
        Where tags belong, in order.
        """
        places: set[int] = set()
        if self._may_hold(text):
            places.update(start + 1 for start, _ in self._overlapping(text))
        tail = text.rstrip()
        if self._ends_in_prefix(tail[-self._longest :]):
            places.add(len(tail))
        head = text.lstrip()
        if self._starts_with_suffix(head[: self._longest]):
            places.add(len(text) - len(head))
        return sorted(places) if places else []

    def _ends_in_prefix(self, tail: str) -> bool:
        for first in self._firsts:
            at = tail.find(first)
            while at >= 0:
                if tail[at:] in self._prefixes:
                    return True
                at = tail.find(first, at + 1)
        return False

    def _starts_with_suffix(self, head: str) -> bool:
        for last in self._lasts:
            at = head.find(last) + 1
            while at:
                if head[:at] in self._suffixes:
                    return True
                at = head.find(last, at) + 1
        return False

    def _tagged(self, text: str) -> str:
        places = self._places(text)
        if not places:
            return text
        return self._tag.join(
            text[start:end] for start, end in itertools.pairwise((0, *places, len(text)))
        )


def _alternatives(markers: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)) if markers else r"(?!)")


def _ascii(tag: str) -> str:
    """
    As JSON spells it in ASCII.
    """
    return json.dumps(tag)[1:-1]
