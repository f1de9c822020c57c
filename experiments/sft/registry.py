"""Data sets of a LLaMA-Factory registry, `dataset_info.json`, as they stand there."""

import re
from typing import Any

from neve import InputError

from experiments.sft.sources import HubDataset, LocalData, RemoteData, slug
from experiments.sft.spec import DatasetSpec
from steps.transform_conversations import read_dataset_info

_FILES = ("**/*.parquet", "**/*.jsonl", "**/*.jsonl.gz", "**/*.jsonl.zst")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def registry_dataset(path: str, name: str, *, revision: str = "", **fields: Any) -> DatasetSpec:
    """Returns the data set that a registry describes: source, columns and tags, split and cap.

    Args:
        path: dataset_info.json or its folder.
        name: Key of the entry.
        revision: Full commit hash of the hub repository; registries name none.
        fields: Further fields of DatasetSpec, such as weight.

    Raises:
        ChatInputError: No such registry or entry, or one that can't be read as conversations.
        InputError: A hub repository without a revision.
    """
    entry = read_dataset_info(path, name)
    if entry.ignored:
        raise InputError(
            f"registry entry {name!r}: has fields that nothing reads, got {', '.join(entry.ignored)}. "
            "Correct or remove them."
        )
    chosen: dict[str, Any] = {"schema": entry.schema, "max_conversations": entry.num_samples}
    if entry.repo:
        if not _COMMIT.fullmatch(revision):
            raise InputError(
                f"registry entry {name!r}: {entry.repo} needs a full commit hash, got {revision!r}. "
                "Pass revision=, so that the same rows come every time."
            )
        chosen["source"] = HubDataset(repo=entry.repo, revision=revision)
        chosen |= {"subset": entry.subset, "split": entry.split}
        if entry.folder:
            chosen["files"] = tuple(f"{entry.folder}/{glob}" for glob in _FILES)
    else:
        is_remote = entry.path.startswith(("s3://", "gs://"))
        chosen["source"] = RemoteData(url=entry.path) if is_remote else LocalData(path=entry.path)
        chosen["files"] = (*_FILES, "**/*.json")
    return DatasetSpec(name=slug(name), **(chosen | fields))
