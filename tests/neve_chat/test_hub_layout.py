"""
Subsets and splits: what a folder says of itself, what its names say, and nothing mixed unasked.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from neve_chat.errors import ChatInputError
from neve_chat.hub_layout import choose_files

PATTERNS = ("**/*.parquet", "**/*.jsonl", "**/*.arrow")


def make(folder: Path, *names: str, readme: str = "") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    if readme:
        (folder / "README.md").write_text(readme)
    return folder


def chosen(folder: Path, subset: str = "", split: str = "") -> list[str]:
    return [file.name for file in choose_files(str(folder), PATTERNS, subset=subset, split=split)]


HUB = (
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/test-00000-of-00001.parquet",
)


def test_split_stands_before_the_numbers(tmp_path: Path) -> None:
    """
    The usual layout of the hub, where the split is part of the file's name.
    """
    folder = make(tmp_path, *HUB, "data/extra_sft-00000-of-00001.parquet")

    assert chosen(folder, split="train") == list(HUB[:2])
    assert chosen(folder, split="test") == [HUB[2]]
    assert chosen(folder, split="extra_sft") == ["data/extra_sft-00000-of-00001.parquet"]
    assert len(chosen(folder, split="*")) == 4


def test_several_splits_are_never_mixed_unasked(tmp_path: Path) -> None:
    """
    A test split doesn't slip into the training data: the choice is asked for.
    """
    folder = make(tmp_path, *HUB)

    with pytest.raises(ChatInputError, match=r"one split must be chosen, got test, train\. Pass"):
        chosen(folder)


def test_an_absent_split_or_subset_lists_what_there_is(tmp_path: Path) -> None:
    """
    The error shows the names that could have been meant.
    """
    folder = make(tmp_path, "a/train.jsonl", "b/train.jsonl", "b/test.jsonl")

    with pytest.raises(ChatInputError, match="got 'validation'; there is test, train"):
        chosen(folder, split="val")
    with pytest.raises(ChatInputError, match=r"the subset must be .* got 'c'; there is a, b"):
        chosen(folder, subset="c")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("training/x.jsonl", "train"),
        ("alpaca_dev.jsonl", "validation"),
        ("valid-0001.jsonl", "validation"),
        ("main/evaluation/part-00000-of-00009.parquet", "test"),
        ("test_gen-00000-of-00001.parquet", "test_gen"),
        ("train-00000-of-00001-a1b2c3d4.parquet", "train"),
    ],
)
def test_split_by_the_name_alone(name: str, split: str, tmp_path: Path) -> None:
    """
    Folders, whole names, last words and numbered names tell the split.
    """
    other = "test.jsonl" if split == "train" else "train.jsonl"
    folder = make(tmp_path, name, f"other/{other}")

    assert chosen(folder, split=split) == [name]


@pytest.mark.parametrize("name", ["test-time-compute.jsonl", "shard-00000-of-00002.parquet"])
def test_names_that_only_contain_a_word_are_no_split(name: str, tmp_path: Path) -> None:
    """
    Where nothing names a split, all files are train, as on the hub.
    """
    folder = make(tmp_path, name, "chats.jsonl")

    assert chosen(folder) == chosen(folder, split="train") == sorted([name, "chats.jsonl"])
    with pytest.raises(ChatInputError, match="got 'test'; there is train"):
        chosen(folder, split="test")


def test_subset_is_the_first_folder(tmp_path: Path) -> None:
    """
    Without a README a subset is a folder, also below data.
    """
    folder = make(tmp_path, "math/train-00000-of-00001.parquet", "data/code/train.jsonl")

    assert chosen(folder, subset="math") == ["math/train-00000-of-00001.parquet"]
    assert chosen(folder, subset="code") == ["data/code/train.jsonl"]
    assert len(chosen(folder)) == 2


README = """---
license: mit
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: all/part-*.parquet
  - split: held_out
    path: [all/extra.parquet]
- config_name: small
  data_dir: few
  data_files: "*.jsonl"
---
# Title
"""


def test_readme_says_which_files_are_which(tmp_path: Path) -> None:
    """
    The configs of README.md win over the names of files.
    """
    names = ("all/part-1.parquet", "all/part-2.parquet", "all/extra.parquet", "few/test.jsonl")
    folder = make(tmp_path, *names, "raw/unlisted.jsonl", readme=README)

    assert chosen(folder, "main", "train") == list(names[:2])
    assert chosen(folder, "main", "held_out") == [names[2]]
    assert chosen(folder, "small") == [names[3]]
    with pytest.raises(ChatInputError, match="one subset must be chosen, got main, small"):
        chosen(folder)
    with pytest.raises(ChatInputError, match="got 'test'; there is held_out, train"):
        chosen(folder, "main", "test")


@pytest.mark.parametrize("readme", ["# Only text\n", "---\nlicense: mit\n---\n", "---\nno end"])
def test_a_readme_without_configs_says_nothing(readme: str, tmp_path: Path) -> None:
    """
    Then the names of the files count.
    """
    folder = make(tmp_path, *HUB, readme=readme)

    assert chosen(folder, split="test") == [HUB[2]]


def test_a_readme_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    """
    It is not passed over, since what it was to say is unknown.
    """
    folder = make(tmp_path, *HUB, readme="---\nconfigs: [\n---\n")

    with pytest.raises(ChatInputError, match=r"README.md: its head must be YAML, got"):
        chosen(folder)
