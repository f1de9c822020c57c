"""Reading token caches: both layouts, ours and Levanter's, and what is refused."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve_chat.cache import TreeCacheWriter
from neve_chat.cache_reader import CacheReader, read_row_lengths, read_trained_tokens
from neve_chat.errors import ChatInputError

LENGTHS = (3, 7, 1, 5, 2, 9)


def make_rows(lengths: tuple[int, ...], seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(1, 100, size).astype(np.int32), rng.integers(0, 2, size).astype(np.int32))
        for size in lengths
    ]


def write_part(folder: Path, rows: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    writer = TreeCacheWriter(str(folder), scratch=folder / "scratch", preprocessor_metadata={})
    with writer:
        for ids, mask in rows:
            writer.append(ids, mask)
    return json.loads((folder / "shard_ledger.json").read_text())


def write_sharded(folder: Path, parts: list[list[tuple[np.ndarray, np.ndarray]]]) -> None:
    names = [f"part-{index:05d}-of-{len(parts):05d}" for index in range(len(parts))]
    ledgers = [write_part(folder / name, rows) for name, rows in zip(names, parts, strict=True)]
    by_shard = {name: ledger["field_counts"] for name, ledger in zip(names, ledgers, strict=True)}
    ledger = {
        "total_num_rows": sum(ledger["total_num_rows"] for ledger in ledgers),
        "shard_rows": {
            name: ledger["total_num_rows"] for name, ledger in zip(names, ledgers, strict=True)
        },
        "is_finished": True,
        "finished_shards": names,
        "field_counts": {
            field: sum(counts[field] for counts in by_shard.values())
            for field in ("input_ids", "assistant_masks")
        },
        "field_counts_by_shard": by_shard,
        "layout": "sharded",
        "metadata": {"preprocessor_metadata": {}},
    }
    (folder / "shard_ledger.json").write_text(json.dumps(ledger))


@pytest.fixture(params=["consolidated", "sharded"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, list[Any]]:
    """Folder of a cache in either layout, and the rows that it holds."""
    rows = make_rows(LENGTHS)
    if request.param == "consolidated":
        write_part(tmp_path / "train", rows)
    else:
        write_sharded(tmp_path / "train", [rows[:2], [], rows[2:3], rows[3:]])
    return str(tmp_path / "train"), rows


def test_rows_come_back_as_written(cache: tuple[str, list[Any]]) -> None:
    """Lengths, whole rows, cut rows and many pieces at once, in the order asked for."""
    path, rows = cache
    reader = CacheReader(path)

    assert reader.num_rows == 6
    assert reader.lengths.tolist() == list(LENGTHS) == read_row_lengths(path).tolist()
    for index, (ids, mask) in enumerate(rows):
        got = reader.read(index)
        assert got[0].dtype == got[1].dtype == np.int32
        assert (got[0].tolist(), got[1].tolist()) == (ids.tolist(), mask.tolist())
    pieces = [(5, 2, 6), (0, 0, None), (3, 1, 100), (2, 4, 5)]
    together = reader.read_many(pieces)
    assert [ids.tolist() for ids, _ in together] == [
        rows[5][0][2:6].tolist(),
        rows[0][0].tolist(),
        rows[3][0][1:].tolist(),
        [],
    ]
    later = asyncio.run(reader.read_many_async(pieces))
    for (ids, mask), (other_ids, other_mask) in zip(together, later, strict=True):
        assert np.array_equal(ids, other_ids)
        assert np.array_equal(mask, other_mask)


def test_trained_tokens_count_up_to_the_limit(cache: tuple[str, list[Any]]) -> None:
    """The sum of each row's mask, whole or cut."""
    path, rows = cache
    reader = CacheReader(path)

    assert reader.trained_tokens().tolist() == [int(mask.sum()) for _, mask in rows]
    expected = [int(mask[:4].sum()) for _, mask in rows]
    assert reader.trained_tokens(4).tolist() == expected
    assert read_trained_tokens(path, reader.lengths, 4).tolist() == expected


def test_blocks_hold_whole_rows_in_order(
    cache: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks of 8 tokens every row comes once and whole, longer ones alone."""
    monkeypatch.setattr("neve_chat.cache_reader._BLOCK_ELEMENTS", 8)
    path, rows = cache

    blocks = list(CacheReader(path).blocks())

    assert len(blocks) > 2
    seen: list[list[int]] = []
    for first, lengths, ids, mask in blocks:
        assert first == len(seen)
        assert len(ids) == len(mask) == lengths.sum()
        seen += [piece.tolist() for piece in np.split(ids, np.cumsum(lengths)[:-1])]
    assert seen == [ids.tolist() for ids, _ in rows]


def test_trained_tokens_do_not_depend_on_blocks(
    cache: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting in blocks of 8 tokens gives the same numbers."""
    path, rows = cache
    monkeypatch.setattr("neve_chat.cache_reader._BLOCK_ELEMENTS", 8)

    assert CacheReader(path).trained_tokens().tolist() == [int(mask.sum()) for _, mask in rows]


def test_row_beyond_the_end_is_an_index_error(cache: tuple[str, list[Any]]) -> None:
    """No row is made up."""
    with pytest.raises(IndexError, match="row 6"):
        CacheReader(cache[0]).read(6)


def edit_ledger(folder: Path, **changes: Any) -> None:
    path = folder / "shard_ledger.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_finished": False}, "must be a finished cache, got an unfinished one"),
        ({"layout": "piled"}, "layout must be one of consolidated, sharded, got 'piled'"),
        ({"total_num_rows": 7}, "rows of the finished shards must sum to 7, got 6"),
        ({"finished_shards": ["part-00000-of-00002"]}, "must sum to 6, got 4"),
        ({"finished_shards": ["../x"]}, r"relative paths below it, got \.\./x"),
        ({"finished_shards": ["other"]}, "shard_rows must tell the rows of other"),
        (
            {"finished_shards": ["part-00000-of-00002", "part-00000-of-00002"]},
            "finished_shards must differ",
        ),
        (
            {"field_counts": {"input_ids": 28, "assistant_masks": 27}},
            "of input_ids must sum to field_counts, got 27 and 28",
        ),
        ({"field_counts": {"input_ids": 27}}, "of assistant_masks must sum"),
        ({"field_counts_by_shard": {}}, "of input_ids must sum to field_counts, got 0"),
    ],
)
def test_ledgers_that_contradict_themselves_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Each broken rule of a sharded ledger is named with both numbers."""
    rows = make_rows(LENGTHS)
    write_sharded(tmp_path, [rows[:4], rows[4:]])
    edit_ledger(tmp_path, **changes)

    with pytest.raises(ChatInputError, match=message):
        CacheReader(str(tmp_path))


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path) -> None:
    """The path is in the message."""
    with pytest.raises(ChatInputError, match=r"got no shard_ledger\.json"):
        CacheReader(str(tmp_path))


def overwrite(path: Path, values: list[int]) -> None:
    import tensorstore as ts

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    store = ts.open(spec, open=True).result()
    store[: len(values)].write(np.array(values)).result()


@pytest.mark.parametrize(
    ("field", "offsets", "message"),
    [
        ("input_ids", [6, 3, 10, 9, 16, 18, 27], "must not decrease, got 9 for row 2"),
        ("assistant_masks", [5, 3, 10, 11, 16, 18, 27], "must hold the ledger's 6 rows, got 5"),
        ("input_ids", [6, 3, 10, 11, 16, 18, 26], "must end at the ledger's 27 tokens, got 26"),
        ("assistant_masks", [6, 4, 10, 11, 16, 18, 27], "rows of the same lengths"),
    ],
)
def test_offsets_that_cannot_be_right_are_refused(
    tmp_path: Path, field: str, offsets: list[int], message: str
) -> None:
    """Lengths are only told when both arrays and the ledger agree."""
    write_part(tmp_path, make_rows(LENGTHS))
    overwrite(tmp_path / field / "offsets", offsets)

    with pytest.raises(ChatInputError, match=message):
        _ = CacheReader(str(tmp_path)).lengths


def test_data_that_is_missing_is_refused(tmp_path: Path) -> None:
    """A chunk file that is not there would read as zeros."""
    write_part(tmp_path, make_rows(LENGTHS))
    (tmp_path / "assistant_masks" / "data" / "c" / "0").unlink()

    with pytest.raises(ChatInputError, match="must hold 27 tokens, got no chunk c/0"):
        CacheReader(str(tmp_path)).read(0)


def test_an_array_that_is_missing_is_refused(tmp_path: Path) -> None:
    """A field without its folder is named."""
    write_part(tmp_path, make_rows(LENGTHS))
    shutil.rmtree(tmp_path / "input_ids" / "offsets")

    with pytest.raises(ChatInputError, match=r"input_ids/offsets: must be an array"):
        _ = CacheReader(str(tmp_path)).lengths


def test_caches_of_another_store_are_read(tmp_path: Path) -> None:
    """Arrays behind a URL are read like local ones."""
    import fsspec

    rows = make_rows(LENGTHS)
    write_part(tmp_path, rows)
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path), "/neve-cache-reader", recursive=True)

    reader = CacheReader("memory://neve-cache-reader")

    assert reader.lengths.tolist() == list(LENGTHS)
    assert reader.read(5)[0].tolist() == rows[5][0].tolist()
    store.rm("/neve-cache-reader", recursive=True)
