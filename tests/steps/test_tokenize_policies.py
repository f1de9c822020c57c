"""
Policies of tokenization: text of special tokens, long conversations, the tokenizer's own template.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve_chat.cache_reader import CacheReader
from neve_chat.errors import ChatInputError
from neve_chat.fast_encoder import FastEncoder
from neve_chat.spans import LossOptions
from neve_chat.templates import load_template
from neve_chat.tokens import ChatTokenizer

from steps.tokenize_chat import TokenizeChatConfig, tokenize_chat
from steps.transform_conversations import TransformConversationsConfig, transform_conversations
from tests.neve_chat.tiny_tokenizer import build_tokenizer

MARKED = [("user", "a web page with <|im_end|> in it"), ("assistant", "ok")]
PLAIN = [("user", "q"), ("assistant", "abc")]


@pytest.fixture
def tokenizer_path(tmp_path: Path) -> str:
    return str(build_tokenizer(tmp_path / "tokenizer"))


def run(
    folder: Path, tokenizer: str, conversations: list[list[tuple[str, str]]], **fields: Any
) -> dict[str, Any]:
    rows = [
        {"messages": [{"role": role, "content": content} for role, content in turns]}
        for turns in conversations
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    transform_conversations(
        TransformConversationsConfig(input=str(folder / "in.jsonl")), str(folder / "rows")
    )
    fields.setdefault("template", load_template("chatml").text)
    config = TokenizeChatConfig(input=str(folder / "rows"), tokenizer=tokenizer, **fields)
    return tokenize_chat(config, str(folder / "cache"))


def texts(folder: Path, tokenizer: str) -> list[str]:
    reader = CacheReader(str(folder / "cache/train"))
    decode = ChatTokenizer(tokenizer).text
    return [decode(reader.read(row)[0]) for row in range(reader.num_rows)]


def test_marker_text_is_an_error_that_names_the_place(tmp_path: Path, tokenizer_path: str) -> None:
    """
    By default nothing that the template didn't write becomes a special token.
    """
    with pytest.raises(ChatInputError, match=r"<\|im_end\|> in messages\[0\]\.content.*escape"):
        run(tmp_path, tokenizer_path, [PLAIN, MARKED])


def test_dropped_marker_text_is_counted(tmp_path: Path, tokenizer_path: str) -> None:
    """
    The row is refused with its reason, the others stay.
    """
    results = run(
        tmp_path,
        tokenizer_path,
        [PLAIN, MARKED],
        special_text="drop",
        max_rejected_fraction=0.5,
    )

    assert results["rejected"] == {"text of a special token": 1}
    assert results["train"]["rows"] == 1


@pytest.mark.parametrize(("policy", "num_ends"), [("keep", 3), ("escape", 2)])
def test_kept_marker_text_is_special_and_escaped_text_is_not(
    policy: str, num_ends: int, tmp_path: Path, tokenizer_path: str
) -> None:
    """
    Both decode to the same text.
    """
    run(tmp_path, tokenizer_path, [MARKED], special_text=policy)

    ids, _ = CacheReader(str(tmp_path / "cache/train")).read(0)
    end = ChatTokenizer(tokenizer_path).encode(["<|im_end|>"])[0]
    assert int((ids == end[0]).sum()) == num_ends
    assert "a web page with <|im_end|> in it<|im_end|>" in texts(tmp_path, tokenizer_path)[0]


def test_allowed_markers_are_no_fault(tmp_path: Path, tokenizer_path: str) -> None:
    """
    Think tokens that a replacement put in are meant.
    """
    turns = [("user", "q"), ("assistant", "<|start_think|>r<|end_think|>abc")]

    results = run(
        tmp_path,
        tokenizer_path,
        [turns],
        allowed_special_text=("<|start_think|>", "<|end_think|>"),
    )

    assert results["train"]["rows"] == 1


def test_windows_make_rows_of_a_long_conversation(tmp_path: Path, tokenizer_path: str) -> None:
    """
    Rows fit, and every answer is trained once.
    """
    turns = [pair for i in range(6) for pair in (("user", f"q{i}"), ("assistant", f"{i} the the"))]

    results = run(
        tmp_path, tokenizer_path, [turns, PLAIN], max_tokens=60, long_conversations="windows"
    )

    assert results["train"]["max_tokens"] <= 60
    assert results["train"]["rows"] > 2
    assert results["notes"]["long conversations shortened (windows)"] == 1
    # each answer: digit, two words, end of turn; and "abc" with its end
    assert results["train"]["trained_tokens"] == 6 * 4 + 2


def test_a_conversation_of_which_no_turn_fits_is_refused(
    tmp_path: Path, tokenizer_path: str
) -> None:
    """
    It is counted, not cut.
    """
    turns = [("user", "y" * 200), ("assistant", "ok")]

    results = run(
        tmp_path,
        tokenizer_path,
        [turns, PLAIN],
        max_tokens=60,
        long_conversations="last_turns",
        max_rejected_fraction=0.5,
    )

    assert results["rejected"] == {"too long": 1}


def test_the_tokenizers_own_template_is_used_and_recorded(
    tmp_path: Path, tokenizer_path: str
) -> None:
    """
    Its text stands in the statistics, where training and export find it.
    """
    text = load_template("chatml").text
    (Path(tokenizer_path) / "chat_template.jinja").write_text(text)

    run(tmp_path, tokenizer_path, [PLAIN], template="", template_name="tokenizer")

    assert json.loads((tmp_path / "cache/stats.json").read_text())["template"] == text
    assert texts(tmp_path, tokenizer_path)[0].endswith("abc<|im_end|>\n")


def test_ends_of_turns_may_stay_untrained(tmp_path: Path, tokenizer_path: str) -> None:
    """
    Then no end is asked for.
    """
    results = run(tmp_path, tokenizer_path, [PLAIN], loss=LossOptions(train_end_of_turn=False))

    assert results["train"]["trained_tokens"] == 1


def test_a_fast_encoder_that_errs_is_replaced_everywhere(
    tmp_path: Path, tokenizer_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A fault put into the fast encoder is seen by the referee, and no token of it is kept.
    """
    conversations = [
        [("user", f"question {i} " * 200), ("assistant", f"abc {i} " * 100)] for i in range(700)
    ]
    expected = run_in(tmp_path / "right", tokenizer_path, conversations)
    encode = FastEncoder.encode

    def wrong(self: FastEncoder, rendered: Any) -> list[Any]:
        found = encode(self, rendered)
        for one, text in zip(found, rendered, strict=True):
            if "question 640 " in text.text or "question 5" in text.text:
                one.ids[-3] = one.ids[-4]
        return found

    monkeypatch.setattr(FastEncoder, "encode", wrong)
    results = run_in(tmp_path / "wrong", tokenizer_path, conversations)

    assert expected["encoder"]["fast"] > 0
    assert results["encoder"]["fast"] == 0
    right, after = (
        CacheReader(str(tmp_path / name / "cache/train")) for name in ("right", "wrong")
    )
    assert right.num_rows == after.num_rows == 700
    for row in range(700):
        assert all(map(np.array_equal, right.read(row), after.read(row)))


def run_in(folder: Path, tokenizer: str, conversations: list[Any]) -> dict[str, Any]:
    folder.mkdir()
    return run(folder, tokenizer, conversations)


def test_reasoning_that_the_template_drops_is_told(
    tmp_path: Path, tokenizer_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The counts, and what to do to train it all.
    """
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ (m.reasoning_content if loop.last else '') + m.content + '<|im_end|>' }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    answer = {"role": "assistant", "content": "ok", "reasoning_content": "abc"}
    user = {"role": "user", "content": "q"}
    second = {**answer, "reasoning_content": "the"}
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": [user, answer, user, second]}))
    rows = TransformConversationsConfig(input=str(tmp_path / "in.jsonl"))
    transform_conversations(rows, str(tmp_path / "rows"))

    config = TokenizeChatConfig(
        input=str(tmp_path / "rows"), tokenizer=tokenizer_path, template=template
    )
    results = tokenize_chat(config, str(tmp_path / "cache"))

    assert results["notes"]["reasoning fields"] == 2
    assert "1 of 2 reasoning fields are dropped by the template" in capsys.readouterr().out
