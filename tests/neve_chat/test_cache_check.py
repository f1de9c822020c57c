"""
Checking caches: what a sound one tells, and one error for each way to be unsound or other.

Damaged and strange ledgers are those that Levanter's loader refuses, and some that it reads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from neve_chat.cache import TreeCacheWriter, write_split_ledger
from neve_chat.cache_check import CacheFacts, cache_splits, check_cache
from neve_chat.errors import ChatInputError
from neve_chat.tokens import ChatTokenizer

LENGTHS = (20, 30, 50, 10, 200, 64, 40)
FIELDS = ("input_ids", "assistant_masks")
TEMPLATE = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
MADE_WITH: dict[str, Any] = {"tokenizer": "org/name", "vocab_size": 273, "chat_template": TEMPLATE}


def write_part(folder: Path, lengths: tuple[int, ...], made_with: Any) -> tuple[int, int]:
    """
    Write rows of ids 1, 2, ... of which the second half is trained.
    """
    with TreeCacheWriter(
        str(folder), scratch=folder / "scratch", preprocessor_metadata=made_with
    ) as writer:
        for length in lengths:
            positions = np.arange(length, dtype=np.int32)
            writer.append(positions + 1, (positions >= length // 2).astype(np.int32))
    return len(lengths), sum(lengths)


def write_cache(folder: Path, layout: str, made_with: Any = MADE_WITH) -> Path:
    """
    Write the seven rows in one of the two layouts.
    """
    if layout == "consolidated":
        write_part(folder, LENGTHS, made_with)
        return folder
    parts = {}
    for index, lengths in enumerate((LENGTHS[:3], (), LENGTHS[3:])):
        name = f"part-{index:05d}-of-00003"
        parts[name] = write_part(folder / name, lengths, made_with)
    write_split_ledger(str(folder), parts, made_with)
    return folder


@pytest.fixture(params=["consolidated", "sharded"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """
    A sound cache of 414 tokens.
    """
    return write_cache(tmp_path / "cache" / "train", request.param)


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A sound sharded cache to copy.
    """
    return write_cache(tmp_path_factory.mktemp("sharded") / "train", "sharded")


def edit_ledger(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "shard_ledger.json"
    ledger = json.loads(path.read_text())
    change(ledger)
    path.write_text(json.dumps(ledger))


def poke(folder: Path, field: str, at: int, value: int, array: str = "data") -> None:
    """
    Change one number of an array.
    """
    part = folder if (folder / field).exists() else folder / "part-00000-of-00003"
    kvstore = {"driver": "file", "path": f"{part / field / array}/"}
    store = ts.open({"driver": "zarr3", "kvstore": kvstore}, open=True).result()
    store[at : at + 1].write(np.array([value], dtype=store.dtype.numpy_dtype)).result()


def test_check_tells_the_facts(cache: Path) -> None:
    """
    Rows, tokens, trained tokens, the longest row and who made it, equal in both layouts.
    """
    facts = check_cache(str(cache), full=True)

    digest = facts.template_digest
    # 414 = the sum of the lengths; all are even, so half of it is trained.
    assert facts == CacheFacts(
        rows=7,
        tokens=414,
        trained_tokens=207,
        untrained_rows=0,
        longest=200,
        layout="sharded" if (cache / "part-00000-of-00003").exists() else "consolidated",
        tokenizer="org/name",
        template_digest=digest,
    )
    assert digest is not None
    assert len(digest) == 64


def test_check_reads_a_first_block_unless_full(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A quick check sees bad ids in the first block only, and doesn't claim to know trained tokens.
    """
    monkeypatch.setattr("neve_chat.cache_reader._BLOCK_ELEMENTS", 60)
    last = cache / "part-00002-of-00003" if (cache / "part-00002-of-00003").exists() else cache
    poke(last, "input_ids", 250, -1)  # beyond the first block in both layouts

    assert check_cache(str(cache)).trained_tokens is None

    with pytest.raises(ChatInputError, match="every token id must be from 0"):
        check_cache(str(cache), full=True)


def without_counts_of(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda ledger: ledger["field_counts_by_shard"].pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ledger: ledger.update(is_finished=False), "finished cache, got an unfinished one"),
        (lambda ledger: ledger.update(total_num_rows=8), r"must sum to 8, got 7"),
        (lambda ledger: ledger.update(field_counts_by_shard={}), "field_counts_by_shard of input"),
        (lambda ledger: ledger.update(field_counts={}), "must sum to field_counts, got 414"),
        (lambda ledger: ledger["field_counts"].update(input_ids=415), "got 414 and 415"),
        (without_counts_of("part-00002-of-00003"), "must sum to field_counts, got 100 and 414"),
        (lambda ledger: ledger.update(layout="heap"), "layout must be one of consolidated, shard"),
        (
            lambda ledger: ledger.update(finished_shards=["part-00000-of-00003"] * 2),
            "finished_shards must differ",
        ),
        (
            lambda ledger: ledger["finished_shards"].__setitem__(0, "../elsewhere"),
            "relative paths below it, got ../elsewhere",
        ),
        (lambda ledger: ledger["shard_rows"].pop("part-00000-of-00003"), "must tell the rows of"),
        (
            lambda ledger: ledger.update(
                total_num_rows=0, finished_shards=[], field_counts={}, field_counts_by_shard={}
            ),
            "must hold at least one row, got none",
        ),
    ],
)
def test_check_refuses_a_ledger_that_contradicts_itself(
    sharded: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """
    What Levanter refuses to load is refused with the number that is wrong.
    """
    shutil.copytree(sharded, tmp_path / "train")
    edit_ledger(tmp_path / "train", change)

    with pytest.raises(ChatInputError, match=message):
        check_cache(str(tmp_path / "train"))


def test_check_refuses_a_folder_without_a_ledger(tmp_path: Path) -> None:
    """
    A build that was killed leaves no ledger, or none at all.
    """
    with pytest.raises(ChatInputError, match=r"finished cache, got no shard_ledger\.json"):
        check_cache(str(tmp_path))


@pytest.mark.parametrize(
    ("field", "array", "at", "value", "message"),
    [
        ("input_ids", "offsets", 2, 5, "must not decrease, got 5 for row 1"),
        ("input_ids", "offsets", 0, 6, "must hold the ledger's . rows, got 6"),
        ("assistant_masks", "offsets", 1, 21, "rows of the same lengths"),
        ("input_ids", "data", 25, -3, r"from 0 to 2,147,483,647, got -3 at token 5 of row 1\."),
        ("assistant_masks", "data", 50, 2, r"mask must be 0 or 1, got 2 at token 0 of row 2\."),
        ("assistant_masks", "data", 0, -1, r"mask must be 0 or 1, got -1 at token 0 of row 0\."),
    ],
)
def test_check_refuses_wrong_arrays(
    cache: Path, field: str, array: str, at: int, value: int, message: str
) -> None:
    """
    Offsets, ids and masks that can't be are named with their place.
    """
    poke(cache, field, at, value, array)

    with pytest.raises(ChatInputError, match=message):
        check_cache(str(cache), full=True)


def test_check_refuses_an_empty_row(tmp_path: Path) -> None:
    """
    A row without a token would be a conversation that nobody had.
    """
    write_part(tmp_path, (4, 0, 4), None)

    with pytest.raises(ChatInputError, match="every row must have a token, got none in row 1"):
        check_cache(str(tmp_path))


def test_check_refuses_a_cache_that_trains_nothing(tmp_path: Path) -> None:
    """
    Masks that are all zero are an error; some such rows are counted.
    """
    ids, zeros = np.arange(5, dtype=np.int32), np.zeros(5, dtype=np.int32)
    with TreeCacheWriter(
        str(tmp_path / "none"), scratch=tmp_path / "scratch", preprocessor_metadata={}
    ) as writer:
        writer.append(ids, zeros)
    with TreeCacheWriter(
        str(tmp_path / "some"), scratch=tmp_path / "scratch", preprocessor_metadata={}
    ) as writer:
        writer.append(ids, zeros)
        writer.append(ids, zeros + 1)
        writer.append(ids, zeros)

    with pytest.raises(ChatInputError, match="it trains no token"):
        check_cache(str(tmp_path / "none"), full=True)
    facts = check_cache(str(tmp_path / "some"), full=True)
    assert (facts.trained_tokens, facts.untrained_rows) == (5, 2)


def test_check_reads_an_untrained_end_that_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The last chunk of masks is absent where it holds only the end of the last row, untrained.
    """
    monkeypatch.setattr("neve_chat.cache._CHUNK", 262_144)
    length = 262_144 + 3
    masks = (np.arange(length) == 7).astype(np.int32)
    with TreeCacheWriter(
        str(tmp_path / "cache"), scratch=tmp_path / "scratch", preprocessor_metadata={}
    ) as writer:
        writer.append(np.ones(2, np.int32), np.ones(2, np.int32))
        writer.append(np.ones(length, np.int32), masks)

    assert not (tmp_path / "cache/assistant_masks/data/c/1").exists()
    facts = check_cache(str(tmp_path / "cache"), full=True)
    assert (facts.tokens, facts.trained_tokens) == (length + 2, 3)


def test_check_refuses_other_kinds_of_cache(cache: Path) -> None:
    """
    A prebuilt cache has loss weights; ids of another type would not load in Levanter.
    """
    parts = list(cache.glob("part-*")) or [cache]
    for part in parts:
        metadata = part / "input_ids/data/zarr.json"
        metadata.write_text(metadata.read_text().replace('"int32"', '"int64"'))
    with pytest.raises(ChatInputError, match=r"data_type must be int32, got int64"):
        check_cache(str(cache))

    for part in parts:
        (part / "assistant_masks").rename(part / "loss_weights")

    with pytest.raises(ChatInputError, match=r"arrays input_ids and assistant_masks, got .*loss_w"):
        check_cache(str(cache))


def test_check_shows_every_difference_and_how_to_accept_it(
    cache: Path, tokenizer_path: str
) -> None:
    """
    Tokenizer, vocabulary and template are told apart at once, each with the words that allow it.
    """
    tokenizer = ChatTokenizer(tokenizer_path)
    made_with = {**MADE_WITH, "vocab_size": 999}
    edit_ledger(cache, lambda ledger: ledger.update(metadata={"preprocessor_metadata": made_with}))
    other = TEMPLATE.replace("m.content", "m.content + '<|im_end|>'")

    with pytest.raises(ChatInputError) as caught:
        check_cache(str(cache), tokenizer=tokenizer, template=other)

    text = str(caught.value)
    assert "the cache records 'org/name' (whose tokenizer.json isn't there), the recipe has" in text
    assert f"the cache has 999 tokens, the recipe {tokenizer.vocab_size}" in text
    assert "they part at character 52: " in text
    assert "{{ m.content }}" in text
    assert "m.content + '" in text
    words = text.rpartition("accept=(")[2].removesuffix(",).").replace('"', "").split(", ")
    assert [word.partition("=")[0] for word in words] == [
        "tokenizer",
        "vocab_size",
        "chat_template",
    ]
    with pytest.raises(ChatInputError, match=r"tokenizer: the cache records") as caught:
        check_cache(str(cache), tokenizer=tokenizer, template=other, accept=words[1:])
    assert "chat template" not in str(caught.value)
    facts = check_cache(str(cache), tokenizer=tokenizer, template=other, accept=words, full=True)
    assert facts.trained_tokens == 207


@pytest.mark.parametrize("made_with", [None, {}])
def test_check_does_not_take_silence_for_agreement(
    tmp_path: Path, tokenizer_path: str, made_with: Any
) -> None:
    """
    A cache that doesn't say what it was made with must be accepted on purpose.
    """
    write_cache(tmp_path, "consolidated", made_with)
    tokenizer = ChatTokenizer(tokenizer_path)

    with pytest.raises(ChatInputError, match=r'\("tokenizer=none", "chat_template=none",\)'):
        check_cache(str(tmp_path), tokenizer=tokenizer, template=TEMPLATE)

    words = ("tokenizer=none", "chat_template=none")
    check_cache(str(tmp_path), tokenizer=tokenizer, template=TEMPLATE, accept=words)


def test_check_knows_the_same_tokenizer_in_another_place(
    tmp_path: Path, tokenizer_path: str
) -> None:
    """
    Content counts, not the path: by the folder that the cache names, else by its statistics.
    """
    shutil.copytree(tokenizer_path, tmp_path / "tokenizer")
    tokenizer = ChatTokenizer(tokenizer_path)
    made_with = MADE_WITH | {
        "tokenizer": str(tmp_path / "tokenizer"),
        "vocab_size": tokenizer.vocab_size,
    }
    cache = write_cache(tmp_path / "cache" / "train", "sharded", made_with)

    check_cache(str(cache), tokenizer=tokenizer, template=TEMPLATE)

    stats = {"tokenizer_digest": "0" * 64}
    (tmp_path / "cache" / "stats.json").write_text(json.dumps(stats))
    with pytest.raises(ChatInputError, match=r"tokenizer' \(sha256:000000000000\), the recipe"):
        check_cache(str(cache), tokenizer=tokenizer, template=TEMPLATE)


def test_check_refuses_ids_beyond_the_tokenizer(cache: Path, tokenizer_path: str) -> None:
    """
    An id that the recipe's tokenizer doesn't have is named, also where differences are accepted.
    """
    tokenizer = ChatTokenizer(tokenizer_path)
    size = tokenizer.id_limit
    accept = ("tokenizer=org/name",)
    made_with = {**MADE_WITH, "vocab_size": tokenizer.vocab_size}
    edit_ledger(cache, lambda ledger: ledger.update(metadata={"preprocessor_metadata": made_with}))
    poke(cache, "input_ids", 3, size)

    with pytest.raises(
        ChatInputError, match=rf"from 0 to {size - 1}, got {size} at token 3 of row 0\."
    ):
        check_cache(str(cache), tokenizer=tokenizer, accept=accept, full=True)


def test_splits_of_both_forms(tmp_path: Path, sharded: Path) -> None:
    """
    A folder of splits, with and without validation, and a flat cache; anything else lists itself.
    """
    shutil.copytree(sharded, tmp_path / "a" / "train")
    train = str(tmp_path / "a" / "train")

    assert cache_splits(str(tmp_path / "a")) == {"train": train}
    assert cache_splits(train) == {"train": train}
    (tmp_path / "a" / "validation").mkdir()
    assert cache_splits(str(tmp_path / "a"))["validation"] == str(tmp_path / "a" / "validation")
    with pytest.raises(ChatInputError, match=r"must hold shard_ledger\.json or .*, got a\."):
        cache_splits(str(tmp_path))
