"""Caches of Levanter and ours in each other's place, without a copy, a rebuild or a warning.

Levanter's loader only warns when a cache was made with another tokenizer or template, and then
trains on it; so its warnings are part of what is compared.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve_chat.cache import TreeCacheWriter, write_split_ledger
from neve_chat.cache_check import cache_splits, check_cache
from neve_chat.cache_reader import CacheReader
from neve_chat.templates import load_template
from neve_chat.tokens import ChatTokenizer

from steps.tokenize_chat import TokenizeChatConfig, tokenize_chat
from steps.transform_conversations import TransformConversationsConfig, transform_conversations
from tests.neve_chat.tiny_tokenizer import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("cache_interop_run.py")
LENGTHS = (20, 30, 50, 10, 200, 64, 40)
EOS_ROWS = (
    ([3, 10, 1, 11, 1], [0, 0, 0, 1, 1]),
    ([3, 12, 1], [0, 1, 1]),
    ([3, 13, 1, 14, 15, 1], [0, 1, 1, 1, 1, 1]),
)
"""Ids, 1 ends a turn, and masks."""
TEMPLATE = load_template("marin").text


def conversations() -> list[dict[str, Any]]:
    """Return conversations with system and tool turns, reasoning, and letters of many bytes."""
    rows = []
    for index in range(14):
        messages = [
            {"role": "system", "content": f"rules {index}"},
            {"role": "user", "content": "grüße 🌍 " * index},
            {"role": "assistant", "content": f"ok {index} abc", "reasoning_content": "the"},
            {"role": "user", "content": "more"},
            {"role": "assistant", "content": "数" * (index + 1)},
        ]
        rows.append({"messages": messages[index % 2 :]})
    return rows


def write_lengths(folder: Path) -> None:
    """Write rows of fixed lengths, the second half trained, in both layouts."""

    def write(path: Path, lengths: tuple[int, ...]) -> tuple[int, int]:
        with TreeCacheWriter(
            str(path), scratch=path / "scratch", preprocessor_metadata={}
        ) as writer:
            for length in lengths:
                mask = (np.arange(length) >= length // 2).astype(np.int32)
                writer.append(np.ones(length, np.int32), mask)
        return len(lengths), sum(lengths)

    write(folder / "consolidated/train", LENGTHS)
    train = folder / "sharded/train"
    names = [f"part-{index:05d}-of-00003" for index in range(3)]
    pieces = (LENGTHS[:2], LENGTHS[2:5], LENGTHS[5:])
    parts = {name: write(train / name, piece) for name, piece in zip(names, pieces, strict=True)}
    write_split_ledger(str(train), parts, {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the inputs and our caches."""
    root = tmp_path_factory.mktemp("interop")
    build_tokenizer(root / "tokenizer")
    (root / "template.jinja").write_text(TEMPLATE)
    (root / "in").mkdir()
    rows = conversations()
    for index, piece in enumerate((rows[:6], rows[6:])):
        text = "".join(json.dumps(row) + "\n" for row in piece)
        (root / "in" / f"{index}.jsonl").write_text(text)
    transform = TransformConversationsConfig(input=str(root / "in"), num_processes=1)
    transform_conversations(transform, str(root / "conversations"))
    config = TokenizeChatConfig(
        input=str(root / "conversations"),
        tokenizer=str(root / "tokenizer"),
        template=TEMPLATE,
        num_processes=1,
    )
    tokenize_chat(config, str(root / "ours"))
    write_lengths(root / "lengths")
    with TreeCacheWriter(
        str(root / "eos/train"), scratch=root / "scratch", preprocessor_metadata={}
    ) as writer:
        for ids, mask in EOS_ROWS:
            writer.append(np.array(ids, np.int32), np.array(mask, np.int32))
    return root


@pytest.fixture(scope="module")
def levanter(folder: Path) -> dict[str, Any]:
    """What Levanter built, loaded and made rows of."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "MARIN_PREFIX": str(folder / "marin"),  # where its workers keep scratch files
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(split: str) -> list[list[list[int]]]:
    """Return [ids, mask] of every row as our reader gives it."""
    reader = CacheReader(split)
    return [[part.tolist() for part in reader.read(row)] for row in range(reader.num_rows)]


@pytest.mark.parametrize("name", ["theirs", "theirs_sharded", "theirs_flat"])
def test_our_reader_reads_what_levanter_builds(
    folder: Path, levanter: dict[str, Any], name: str
) -> None:
    """Its auto-build, its shards joined by a ledger, and a flat cache: all give the same rows."""
    split = cache_splits(str(folder / name))["train"]

    assert levanter["built"]["num_shards"] == 2
    assert levanter["built"]["layout"] == "consolidated"
    assert rows_of(split) == levanter["built"]["rows"]
    assert rows_of(split) == rows_of(str(folder / "ours/train"))


@pytest.mark.parametrize("name", ["theirs", "theirs_sharded", "theirs_flat"])
def test_what_levanter_builds_is_checked_and_fits(
    folder: Path, levanter: dict[str, Any], name: str
) -> None:
    """A cache of the same tokenizer and template needs nothing accepted on purpose."""
    split = cache_splits(str(folder / name))["train"]

    facts = check_cache(
        split,
        tokenizer=ChatTokenizer(str(folder / "tokenizer")),
        template=TEMPLATE,
        full=True,
    )

    rows = levanter["built"]["rows"]
    assert facts.rows == len(rows) == 14
    assert facts.tokens == sum(len(ids) for ids, _ in rows)
    assert facts.trained_tokens == sum(sum(mask) for _, mask in rows)
    assert facts.layout == ("sharded" if name == "theirs_sharded" else "consolidated")


def test_levanter_loads_what_we_build(folder: Path, levanter: dict[str, Any]) -> None:
    """With building off and on: the same rows, nothing written, and no metadata mismatch."""
    loaded = levanter["loaded"]

    assert loaded["layout"] == "sharded"
    assert loaded["rows"] == [levanter["built"]["rows"]] * 2
    assert loaded["is_untouched"]
    assert [text for text in loaded["messages"] if "mismatch" in text.lower()] == []
    assert [text for text in loaded["messages"] if "rebuild" in text.lower()] == []


@pytest.mark.parametrize("layout", ["consolidated", "sharded"])
@pytest.mark.parametrize(
    ("form", "sums"),
    [
        # 128 positions; 20+30+50+10 fit, 200 is cut or dropped, 64+40 fit. Half of each row is
        # trained: 10+15+25+5, 32+20; of the 200 its first 128 hold 28 and its last 128 hold 100.
        ("True left", [55, 28, 52]),
        ("True right", [55, 100, 52]),
        ("True drop", [55, 52]),
        ("1 drop", [10, 15, 25, 5, 32, 20]),
    ],
)
def test_levanter_trains_on_our_rows(
    levanter: dict[str, Any], layout: str, form: str, sums: list[float]
) -> None:
    """Rows and the sums of their loss weights are the same from both layouts."""
    assert levanter["weights"][f"{layout} {form}"] == sums


def test_levanter_warns_of_another_template_and_we_refuse(
    folder: Path, tmp_path: Path, levanter: dict[str, Any]
) -> None:
    """The mismatch that it logs and then trains on is an error here."""
    shutil.copytree(folder / "theirs_flat", tmp_path / "cache")
    other = TEMPLATE + "{# another #}"

    with pytest.raises(ValueError, match=r"chat template: the cache has sha256:"):
        check_cache(str(tmp_path / "cache"), template=other)

    assert any("Metadata mismatch" in text for text in levanter["other_template"])


def test_masks_survive_packing_whatever_the_token(levanter: dict[str, Any]) -> None:
    """An end token inside a row changes no weight, and padding has none (trl 3728, nanochat 582)."""
    # The weight of a position is that of the token after it, so each mask moves left by one and
    # the end of a conversation predicts nothing: 2 + 2 and 5 trained tokens, as in the rows.
    assert levanter["packed"] == [
        [[3, 10, 1, 11, 1, 3, 12, 1], [0, 0, 1, 1, 0, 1, 1, 0]],
        [[3, 13, 1, 14, 15, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]],
    ]
    assert sum(sum(weights) for _, weights in levanter["packed"]) == 9
