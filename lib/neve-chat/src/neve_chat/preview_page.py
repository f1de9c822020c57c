"""
The page of `neve preview --html`: one file that needs no network and trusts no data.

A policy in the page lets nothing but its own style and script run, by their digests; texts are
escaped by the template engine. It reads the same without scripts, which only add token ids, a
filter and keys.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from neve_chat.preview import INVISIBLE, Decoder, Piece, escape, visible
from neve_chat.preview_rows import PreviewSource, Refused, Shown
from neve_chat.statistics import length_classes
from neve_chat.tokens import Tokens

__all__ = ["page_html"]

_FILES = Path(__file__).parent / "page"
_MAX_OPEN_TOKENS = 4_000
_NOTHING = "∅"
_LONGEST_PIECE = 2**16 - 1


def page_html(
    *,
    title: str,
    sources: Sequence[tuple[PreviewSource, Sequence[Shown | Refused]]],
    count_all: bool = False,
) -> str:
    """
    The page as HTML, about 6 bytes for each token.

    Args:
        title: what is shown: a recipe or a path.
        sources: each data set with the conversations of it to show.
        count_all: where no counts are written down, take them from the data.
    """
    style, script = (_FILES / name for name in ("preview.css", "preview.js"))
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((_FILES / "preview.html.jinja").read_text("utf-8"))
    return template.render(
        title=visible(title),
        style=Markup(style.read_text("utf-8")),
        style_hash=_hash(style),
        script=Markup(script.read_text("utf-8")),
        script_hash=_hash(script),
        sources=[_source(source, shown, count_all) for source, shown in sources],
        version=version("neve-chat"),
    )


def _hash(file: Path) -> str:
    """
    The digest by which a policy names an inline style or script.
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(file.read_bytes()).digest()).decode()}"


def _source(
    source: PreviewSource, shown: Sequence[Shown | Refused], count_all: bool
) -> dict[str, Any]:
    counts = source.counts() if count_all else source.known_counts()
    decoder = Decoder(source.tokenizer)
    return {
        "name": visible(source.name),
        "numbers": _numbers(counts.as_json() if counts else {}),
        "facts": _facts(
            source, Counter(each.reason for each in shown if isinstance(each, Refused))
        ),
        "bars": length_classes(counts) if counts else [],
        "conversations": [
            _refusal(conversation)
            if isinstance(conversation, Refused)
            else _conversation(conversation, decoder, is_first=index == 0)
            for index, conversation in enumerate(shown)
        ],
    }


def _numbers(counts: dict[str, Any]) -> list[dict[str, str]]:
    """
    The large numbers at the top.
    """
    if not counts:
        return []
    rows, tokens, trained = counts["rows"], counts["tokens"], counts["trained_tokens"]
    numbers = [
        ("Conversations", f"{rows:,}", ""),
        ("Tokens", f"{tokens:,}", f"{tokens / max(rows, 1):,.0f} each"),
        ("Trained", f"{trained / max(tokens, 1):.1%}", f"{trained:,} tokens"),
        ("Longest", f"{counts['max_tokens']:,}", "tokens"),
    ]
    return [dict(zip(("label", "value", "note"), row, strict=True)) for row in numbers]


def _facts(source: PreviewSource, left_out: Mapping[str, int]) -> list[dict[str, str]]:
    """
    Where it is, what made it, and what was left out.
    """
    known = source.facts
    terminator = (known.get("terminator") or {}).get("text")
    facts = [
        ("Path", source.path, ""),
        ("Template", known.get("template_name", "unknown"), known.get("template_digest", "")),
        ("Tokenizer", source.tokenizer.path, known.get("tokenizer_digest", "")),
        ("Vocabulary", f"{source.tokenizer.vocab_size:,} tokens", ""),
        *([("End of turn", terminator, "")] if terminator else []),
        ("Rejected", _listed(known.get("rejected") or {}), ""),
        *([("Left out here", _listed(left_out), "")] if left_out else []),
        ("Notes", _listed(known.get("notes") or {}), ""),
    ]
    return [
        {"label": label, "value": visible(str(value)), "digest": str(digest)}
        for label, value, digest in facts
    ]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"


def _refusal(refused: Refused) -> dict[str, Any]:
    origin = [text for text in (refused.source, refused.row_id) if text]
    return {
        "row": refused.row,
        "reason": visible(refused.reason),
        "detail": visible(refused.detail),
        "origin": visible(" · ".join(origin)),
    }


def _conversation(shown: Shown, decoder: Decoder, *, is_first: bool) -> dict[str, Any]:
    tokens = shown.tokens
    pieces = decoder.pieces(tokens)
    origin = [text for text in (shown.source, shown.row_id, shown.note) if text]
    return {
        "row": shown.row,
        "num_tokens": len(tokens.ids),
        "num_trained": tokens.num_trained,
        "share": tokens.num_trained / max(len(tokens.ids), 1),
        "origin": visible(" · ".join(origin)),
        "is_open": is_first or len(tokens.ids) <= _MAX_OPEN_TOKENS,
        "trained_runs": _trained_runs(tokens),
        "html": _text_html(pieces),
        "num_pieces": len(pieces),
        "packed": _packed(pieces),
    }


def _trained_runs(tokens: Tokens) -> list[tuple[int, int]]:
    """
    (first token, number of tokens) of each trained run.
    """
    edges = np.flatnonzero(np.diff(tokens.mask, prepend=0, append=0))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _text_html(pieces: Sequence[Piece]) -> Markup:
    parts: list[Markup] = []
    for is_trained, same_loss in groupby(pieces, lambda piece: piece.is_trained):
        inner: list[Markup] = []
        for is_special, run in groupby(same_loss, lambda piece: piece.is_special):
            texts = [piece.text for piece in run]
            html = _shown_html("".join(texts)) if all(texts) else _piecewise_html(texts)
            if is_trained:
                html = html.replace("\n", Markup('<i class="n"></i>\n'))
            inner.append(
                _wrapped('<span class="special">', html, "</span>") if is_special else html
            )
        html = Markup("").join(inner)
        parts.append(_wrapped("<mark>", html, "</mark>") if is_trained else html)
    return Markup("").join(parts)


def _piecewise_html(texts: Sequence[str]) -> Markup:
    """
    The same for pieces of which some have no text: a sign stands for them.
    """
    nothing = Markup('<span class="escape">') + _NOTHING + Markup("</span>")
    return Markup("").join(_shown_html(text) if text else nothing for text in texts)


def _wrapped(before: str, html: Markup, after: str) -> Markup:
    return Markup(before) + html + Markup(after)


def _shown_html(text: str) -> Markup:
    """
    Text; what has no shape of its own as an escape.
    """
    html, last = [], 0
    for match in INVISIBLE.finditer(text):
        html.append(Markup.escape(text[last : match.start()]))
        html.append(_wrapped('<span class="escape">', Markup.escape(escape(match[0])), "</span>"))
        last = match.end()
    html.append(Markup.escape(text[last:]))
    return Markup("").join(html)


def _packed(pieces: Sequence[Piece]) -> str:
    """
    Ids, lengths of texts and numbers of ids as preview.js unpacks them.
    """
    ids = [token_id for piece in pieces for token_id in piece.ids]
    lengths = [len((visible(p.text) or _NOTHING).encode("utf-16-le")) // 2 for p in pieces]
    assert max(lengths, default=0) <= _LONGEST_PIECE
    sizes = [len(piece.ids) for piece in pieces]
    data = (
        struct.pack(f"<{len(ids)}I", *ids)
        + struct.pack(f"<{len(lengths)}H", *lengths)
        + bytes(sizes)
    )
    return base64.b64encode(zlib.compress(data)).decode("ascii")
