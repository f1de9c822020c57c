"""
Tokenization as a step: caches that Levanter opens, masks that stop, flat memory.
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema
from neve_chat.spans import LossOptions
from neve_chat.templates import load_template

from steps.tokenize_chat import TokenizeChatConfig, tokenize_chat
from steps.transform_conversations import TransformConversationsConfig, transform_conversations

ROOM = Path(__file__).parent.parent / "neve_chat"
INSIDE = (
    "{% for m in messages %}{{ '<|im_start|>' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}"
    "{% endif %}{% endfor %}"
)
OUTSIDE = (
    "{% for m in messages %}{{ '<|im_start|>' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{{ '<|im_end|>' }}{% endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """
    Folder of the tiny tokenizer of the conversation room.
    """
    spec = importlib.util.spec_from_file_location("tiny_tokenizer", ROOM / "tiny_tokenizer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.build_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def turns(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def transformed(folder: Path, rows: list[dict[str, Any]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TransformConversationsConfig(
        input=str(folder / "in.jsonl"), schema=ConversationSchema()
    )
    transform_conversations(config, str(folder / "transformed"))
    return str(folder / "transformed")


def run(folder: Path, rows: list[dict[str, Any]], tokenizer: str, **fields: Any) -> dict[str, Any]:
    source = transformed(folder, rows)
    fields.setdefault("template", load_template("marin").text)
    config = TokenizeChatConfig(input=source, tokenizer=tokenizer, **fields)
    return tokenize_chat(config, str(folder / "cache"))


def column(split: Path, field: str) -> list[list[int]]:
    """
    Rows of all parts, read without the project's own reader.
    """
    ledger = json.loads((split / "shard_ledger.json").read_text())
    rows = []
    for name in ledger["finished_shards"]:
        arrays = {}
        for array in ("data", "offsets"):
            kvstore = {"driver": "file", "path": f"{split / name / field / array}/"}
            arrays[array] = ts.open({"driver": "zarr3", "kvstore": kvstore}, open=True).result()
        num_rows = int(arrays["offsets"][0].read().result())
        ends = np.asarray(arrays["offsets"][1 : num_rows + 1].read().result())
        data = np.asarray(arrays["data"][: ends[-1]].read().result())
        rows += [part.tolist() for part in np.split(data, ends[:-1])]
    return rows


@pytest.mark.parametrize(
    ("train_turns", "mask"),
    [("all", [0, 0, 0, 0, 1, 1, 0, 1, 1]), ("last", [0, 0, 0, 0, 0, 0, 0, 1, 1])],
)
def test_tokenize_trains_the_turns_asked_for(
    tmp_path: Path, tokenizer_path: str, train_turns: str, mask: list[int]
) -> None:
    """
    All assistant turns are trained with their end tokens, or the last one only.
    """
    rows = [turns(("user", "q"), ("assistant", "ok"), ("assistant", "abc"))]

    run(tmp_path, rows, tokenizer_path, template=INSIDE, loss=LossOptions(train_turns=train_turns))

    # <|im_start|> q <|im_end|> <|im_start|> ok <|im_end|> <|im_start|> abc <|im_end|>
    ids = column(tmp_path / "cache/train", "input_ids")
    assert [len(row) for row in ids] == [len(mask)]
    assert column(tmp_path / "cache/train", "assistant_masks") == [mask]


def test_tokenize_counts_and_describes(tmp_path: Path, tokenizer_path: str) -> None:
    """
    Results, statistics and the first example tell the same, exact numbers.
    """
    rows = [
        turns(("user", "q"), ("assistant", "ok")),
        turns(("user", "abc"), ("assistant", "the the")),
    ]

    results = run(tmp_path, rows, tokenizer_path, template=INSIDE)

    # 6 tokens, 2 trained; and <s> abc <e> <s> the _the <e> = 7 tokens, 3 trained
    assert results["train"] == {
        "rows": 2,
        "tokens": 13,
        "trained_tokens": 5,
        "max_tokens": 7,
        "length_histogram": {"8": 2},
    }
    assert results["validation"]["rows"] == 0
    assert not (tmp_path / "cache/validation").exists()
    assert results["baselines"]["unigram_loss"] is None
    text = (tmp_path / "cache/first_example.txt").read_text()
    assert text == "<|im_start|>q<|im_end|><|im_start|>⟦ok<|im_end|>⟧"
    example = json.loads((tmp_path / "cache/first_example.json").read_text())
    assert example["assistant_masks"] == [0, 0, 0, 0, 1, 1]
    stats = json.loads((tmp_path / "cache/stats.json").read_text())
    assert stats["terminator"]["text"] == "<|im_end|>"
    assert len(stats["tokenizer_digest"]) == 64


def test_tokenize_refuses_a_template_without_marks(tmp_path: Path) -> None:
    """
    A template that would train nothing fails when the config is made.
    """
    with pytest.raises(ChatInputError, match="no token would be trained"):
        TokenizeChatConfig(input="x", tokenizer="y", template="{{ messages }}")


def test_tokenize_refuses_a_stop_token_outside_the_loss(
    tmp_path: Path, tokenizer_path: str
) -> None:
    """
    A template whose end-of-turn token isn't trained is refused (trl PR 5988: models never stop).
    """
    with pytest.raises(ChatInputError, match=r"got the bare answer with '<\|im_end\|>' outside"):
        run(tmp_path, [turns(("user", "q"), ("assistant", "a"))], tokenizer_path, template=OUTSIDE)

    assert not (tmp_path / "cache/train/shard_ledger.json").exists()


def test_tokenize_accepts_a_terminator_that_is_not_eos(tmp_path: Path, tokenizer_path: str) -> None:
    """
    What the template renders counts, not the tokenizer's eos token.
    """
    template = INSIDE.replace("<|im_end|>", "<|eot_id|>")  # eos is <|end_of_text|>

    results = run(
        tmp_path, [turns(("user", "q"), ("assistant", "a"))], tokenizer_path, template=template
    )

    assert results["notes"]["unclosed conversations"] == 0


def test_tokenize_writes_no_ledger_when_refused(tmp_path: Path, tokenizer_path: str) -> None:
    """
    A source the template refuses leaves counts and an example, and no cache that looks complete.
    """
    template = "{% if messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}" + INSIDE
    rows = [
        turns(("user", "q"), ("assistant", "a")),
        turns(*[("user", "q"), ("assistant", "a")] * 2),
    ]

    with pytest.raises(ChatInputError, match=r"1 of 2 \(template refused x1\)"):
        run(tmp_path, rows, tokenizer_path, template=template)

    assert not (tmp_path / "cache/train/shard_ledger.json").exists()


def test_tokenize_splits_by_id_alone(tmp_path: Path, tokenizer_path: str) -> None:
    """
    A conversation stays in its split when others come or go; the whole is the same twice.
    """
    rows = [turns(("user", f"q{i}"), ("assistant", f"a{i}")) for i in range(200)]

    results = run(tmp_path / "all", rows, tokenizer_path, validation_fraction=0.2)
    run(tmp_path / "half", rows[::2], tokenizer_path, validation_fraction=0.2)

    held_out = column(tmp_path / "all/cache/validation", "input_ids")
    # 200 draws with p = 0.2: 40 expected, standard deviation 5.7
    assert 20 < results["validation"]["rows"] == len(held_out) < 60
    assert results["train"]["rows"] + len(held_out) == 200
    half = column(tmp_path / "half/cache/validation", "input_ids")
    assert half
    assert all(row in held_out for row in half)
    assert 0 < results["baselines"]["bigram_loss"] < results["baselines"]["unigram_loss"]


def test_baselines_are_the_stated_formulas() -> None:
    """
    Add-one unigram and Witten-Bell bigram, by hand on three tokens of a vocabulary of four.
    """
    from neve_chat.baselines import BaselineCounter

    counter = BaselineCounter(4)
    counter.add("train", np.array([0, 1, 1, 2]), np.array([0, 1, 1, 1]))
    counter.add("validation", np.array([0, 1, 3]), np.array([0, 1, 1]))

    losses = counter.losses()

    # train pairs 0>1 1>1 1>2: p(1) = 3/7, p(3) = 1/7; p(1|0) = (1 + 3/7) / 2; p(3|1) = (0 + 2/7) /
    # 4
    assert losses["unigram_loss"] == pytest.approx(-(math.log(3 / 7) + math.log(1 / 7)) / 2)
    assert losses["bigram_loss"] == pytest.approx(-(math.log(5 / 7) + math.log(1 / 14)) / 2)


@pytest.mark.parametrize("kept_fraction", [0.0, 0.5, 0.9])
def test_tokenize_refuses_a_shard_that_is_cut_off(
    kept_fraction: float, tmp_path: Path, tokenizer_path: str
) -> None:
    """
    A shard that lost its end is an error, not a smaller data set: zstd's reader reports nothing.
    """
    rows = [turns(("user", f"q{i} " * 50), ("assistant", f"a{i}")) for i in range(200)]
    source = transformed(tmp_path, rows)
    shard = Path(source) / "shard-00000.jsonl.zst"
    data = shard.read_bytes()
    shard.write_bytes(data[: int(len(data) * kept_fraction)])
    config = TokenizeChatConfig(input=source, tokenizer=tokenizer_path, template=INSIDE)

    with pytest.raises(ChatInputError, match="cut off"):
        tokenize_chat(config, str(tmp_path / "out"))

    assert not list((tmp_path / "out").rglob("shard_ledger.json"))
