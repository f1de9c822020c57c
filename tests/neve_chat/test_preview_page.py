"""
The page of a preview: one file, safe against the data, with all that was asked for.
"""

from __future__ import annotations

import base64
import hashlib
import html as html_module
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve_chat.errors import ChatInputError
from neve_chat.preview_page import page_html
from neve_chat.preview_source import open_source

from tests.neve_chat.tiny_tokenizer import build_tokenizer

HOSTILE = (
    "</div></mark></style></script><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\"><!-- {{ 7 * 7 }} &amp; \x00\x1b\u202e"
)


class Page(HTMLParser):
    """
    Collects the tags and texts of a page.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.trained: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "rect"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "mark" in self._open:
            self.trained.append(data)
        self.texts.append(data)


def page_of(folder: Path, tokenizer: str, *rows: tuple[str, str], **fields: Any) -> str:
    """
    The page of conversations of one question and one answer.
    """
    file = folder / "rows.jsonl"
    lines = [
        json.dumps(
            {
                "id": f"<i>{index}</i>",
                "source": "a\u202eb:0",
                "messages": [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ],
            }
        )
        for index, (question, answer) in enumerate(rows)
    ]
    file.write_text("\n".join(lines))
    source = open_source(str(file), tokenizer=tokenizer, template="chatml")
    shown = list(source.conversations(0, len(rows)))
    return page_html(title="<b>rows</b>", sources=[(source, shown)], **fields)


def test_page_shows_markup_as_text(tmp_path: Path, tokenizer_path: str) -> None:
    """
    Nothing of the data, ids and title included, becomes an element or an attribute.
    """
    html = page_of(tmp_path, tokenizer_path, (HOSTILE, f"the {HOSTILE}"))

    page = Page(html)
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == 1
    assert names.count("style") == 1
    assert not {"img", "b", "iframe", "link"} & set(names)
    escaped = HOSTILE.replace("\x00", "\\x00").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    # The legend's word, then the answer with its end of turn
    assert "".join(page.trained).replace("\n", "") == f"trainedthe {escaped}<|im_end|>"
    assert not set(html) & {"\x00", "\x1b", "\u202e"}


def test_page_needs_nothing_from_outside(tmp_path: Path, tokenizer_path: str) -> None:
    """
    The policy allows our style and script by digest and nothing else; no address is in the page.
    """
    html = page_of(tmp_path, tokenizer_path, ("q", "ok"))

    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    rules = html_module.unescape(policy[1])
    for tag in ("style", "script"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert body
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in rules
    assert rules.startswith("default-src 'none'; ")
    assert "unsafe" not in rules
    assert not re.search(r"(src|href|action)=|url\(|@import|://", html.replace(rules, ""))


def test_page_carries_every_id(tmp_path: Path, tokenizer_path: str) -> None:
    """
    The packed arrays hold all ids, and lengths that add up to the text as it is shown.
    """
    html = page_of(tmp_path, tokenizer_path, ("é 😀\x1b", "ok\n"))

    text = re.search(
        r'<div class="text" data-pieces="(\d+)" data-tokens="([^"]*)">(.*?)</div>', html, re.DOTALL
    )
    assert text
    data = zlib.decompress(base64.b64decode(text[2]))
    count = int(text[1])
    sizes = np.frombuffer(data[-count:], dtype=np.uint8)
    lengths = np.frombuffer(data[-3 * count : -count], dtype="<u2")
    ids = np.frombuffer(data[: -3 * count], dtype="<u4")
    source = open_source(str(tmp_path / "rows.jsonl"), tokenizer=tokenizer_path, template="chatml")
    (shown,) = source.conversations(0, 1)
    assert ids.tolist() == shown.tokens.ids.tolist()
    assert sizes.sum() == len(ids)
    plain = html_module.unescape(re.sub(r"<[^>]*>", "", text[3]))
    assert "\\x1b" in plain
    assert lengths.sum() == len(plain.encode("utf-16-le")) // 2


def test_page_stays_small(tmp_path: Path, tokenizer_path: str) -> None:
    """
    20 conversations of 30,000 tokens make a few megabytes: at most 8 bytes for each token.
    """
    rng = np.random.default_rng(0)
    words = [f"{word} " for word in ("the", "abc", "ok", "answer", "{", "}\n", "thé")]
    answer = "".join(rng.choice(words, size=9_000))

    html = page_of(tmp_path, tokenizer_path, ("q", answer), count_all=True)

    num_tokens = int(re.findall(r"([\d,]+) tokens, [\d,]+ trained", html)[0].replace(",", ""))
    assert num_tokens > 20_000
    assert len(html.encode()) < 8 * num_tokens


def test_page_counts_when_asked(tmp_path: Path, tokenizer_path: str) -> None:
    """
    Without counts on disk there are none at the top, unless the data may be read for them.
    """
    rows = [("q", "ok"), ("q", "the")]

    silent = "".join(Page(page_of(tmp_path, tokenizer_path, *rows)).texts)
    counted = "".join(Page(page_of(tmp_path, tokenizer_path, *rows, count_all=True)).texts)

    assert "Conversations2" not in re.sub(r"\s", "", silent)
    assert "Conversations2" in re.sub(r"\s", "", counted)
    assert "Tokens per conversation" in counted


def test_conversations_need_a_template_that_fits(tmp_path: Path) -> None:
    """
    Markers that the tokenizer spells in letters are refused before anything is shown.
    """
    tokenizer = build_tokenizer(tmp_path / "tokenizer")
    file = tmp_path / "rows.jsonl"
    file.write_text("")

    with pytest.raises(ChatInputError, match=r"<\|assistant\|> \(\d+ tokens\)"):
        open_source(str(file), tokenizer=str(tokenizer), template=str(_foreign(tmp_path)))


def _foreign(folder: Path) -> Path:
    """
    A template with a marker that the tiny tokenizer doesn't have.
    """
    file = folder / "foreign.jinja"
    file.write_text(
        "{% for m in messages %}{% generation %}<|assistant|>{{ m.content }}<|im_end|>"
        "{% endgeneration %}{% endfor %}"
    )
    return file


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "need a tokenizer and a template to show what is trained, got neither"),
        ({"tokenizer": "."}, "got one of them"),
    ],
)
def test_conversations_need_a_tokenizer_and_a_template(
    fields: dict[str, str], message: str, tmp_path: Path
) -> None:
    """
    What is missing is said before anything is read.
    """
    file = tmp_path / "rows.jsonl"
    file.write_text("")

    with pytest.raises(ChatInputError, match=message):
        open_source(str(file), **fields)
