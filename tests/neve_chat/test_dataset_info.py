"""
LLaMA-Factory's registry means the same here as there, and what it can't mean is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from neve_chat.adapt import RowAdapter
from neve_chat.dataset_info import RegistryEntry, read_dataset_info
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema
from neve_chat.transform import transform_conversations

ROLE_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
}
FROM_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
}


def shared(column: str, tags: dict[str, str], folder: str) -> dict[str, Any]:
    return {
        "file_name": f"/hub/{folder}/data",
        "formatting": "sharegpt",
        "columns": {"messages": column},
        "tags": tags,
    }


# The shape of the registry that OpenThoughts-Agent ships with its Delphi recipes.
SHIPPED = {
    "_comment": "absolute folders of one cluster",
    "tulu3": shared("messages", ROLE_TAGS, "tulu-3-sft-mixture"),
    "magpie": shared("conversations", FROM_TAGS, "Magpie-Llama-3.3-Pro-500K-Filtered"),
    "wildchat_1.1m": shared("conversation", ROLE_TAGS, "wildchat50m-rewild-sft-1118773"),
    "wildchat_386k": shared("conversation", ROLE_TAGS, "wildchat50m-rewild-sft-385700"),
    "delphi_warmup": shared("messages", ROLE_TAGS, "canonical-think"),
}


def read(folder: Path, registry: Any, name: str) -> RegistryEntry:
    (folder / "dataset_info.json").write_text(json.dumps(registry))
    return read_dataset_info(str(folder), name)


@pytest.mark.parametrize(
    ("name", "column", "is_tagged_from"),
    [
        ("tulu3", "messages", False),
        ("magpie", "conversations", True),
        ("wildchat_1.1m", "conversation", False),
        ("wildchat_386k", "conversation", False),
        ("delphi_warmup", "messages", False),
    ],
)
def test_registry_reads_the_shipped_entries(
    tmp_path: Path, name: str, column: str, is_tagged_from: bool
) -> None:
    """
    Each entry keeps its own column and tags, and its absolute folder.
    """
    entry = read(tmp_path, SHIPPED, name)

    tags = FROM_TAGS if is_tagged_from else ROLE_TAGS
    turns = [
        {tags["role_tag"]: tags[f"{role}_tag"], tags["content_tag"]: role}
        for role in ("system", "user", "assistant")
    ]
    conversation = RowAdapter(entry.schema).adapt({column: turns})
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]
    assert entry.path == SHIPPED[name]["file_name"]
    assert (entry.repo, entry.split, entry.num_samples, entry.ignored) == ("", "train", None, ())
    assert entry.schema.tool == entry.schema.function_call == ()
    assert entry.schema.tools_column == ""


def test_registry_entry_without_blocks_has_the_usual_names(tmp_path: Path) -> None:
    """
    The formatting is alpaca unless stated, and both formattings have their usual columns.
    """
    registry = {
        "plain": {"file_name": "plain.json"},
        "talk": {"hf_hub_url": "org/talk", "ms_hub_url": "other/talk", "formatting": "sharegpt"},
    }

    plain, talk = (read(tmp_path, registry, name) for name in registry)

    assert plain.path == str(tmp_path / "plain.json")
    row = {"instruction": "sum", "input": "1 2", "output": "3"}
    messages = RowAdapter(plain.schema).adapt(row).messages
    assert [message["content"] for message in messages] == ["sum\n1 2", "3"]
    assert (talk.repo, talk.path) == ("org/talk", "")
    assert talk.schema == ConversationSchema(
        kind="sharegpt",
        conversation_column="conversations",
        role_key="from",
        content_key="value",
        user=("human",),
        assistant=("gpt",),
        system=("system",),
        tool=("observation",),
        tools_column="",
    )


def test_registry_columns_block_leaves_out_what_it_does_not_list(tmp_path: Path) -> None:
    """
    A listed column is read, an unlisted one isn't, even under its usual name.
    """
    columns = {"prompt": "q", "response": "a", "history": "past"}
    entry = read(tmp_path, {"d": {"file_name": "d.json", "columns": columns}}, "d")

    row = {"q": "x", "a": "y", "past": [["p", "r"]], "input": "unused", "system": "unused"}
    messages = RowAdapter(entry.schema).adapt(row).messages

    assert [message["content"] for message in messages] == ["p", "r", "x", "y"]


def test_registry_keeps_selection_and_tells_what_it_ignores(tmp_path: Path) -> None:
    """
    Subset, split, folder and sample count are kept; a field nobody knows is told.
    """
    entry = {
        "hf_hub_url": "org/d",
        "subset": "en",
        "split": "test",
        "folder": "v2",
        "num_samples": 100,
        "homepage": "x",
    }

    found = read(tmp_path, {"d": entry}, "d")

    assert (found.subset, found.split, found.folder) == ("en", "test", "v2")
    assert (found.num_samples, found.ignored) == (100, ("homepage",))


@pytest.mark.parametrize(
    ("entry", "row"),
    [
        (
            {"columns": {"prompt": "p", "query": "c", "chosen": "good", "rejected": "bad"}},
            {"p": "q", "c": "", "good": "a", "bad": "b"},
        ),
        (
            {
                "formatting": "sharegpt",
                "columns": {"messages": "talk", "chosen": "good", "rejected": "bad"},
            },
            {"talk": [{"from": "human", "value": "q"}], "good": {"from": "gpt", "value": "a"}},
        ),
    ],
)
def test_registry_ranking_takes_the_chosen_side(
    tmp_path: Path, entry: dict[str, Any], row: dict[str, Any]
) -> None:
    """
    Preference data trains on what was chosen.
    """
    ranking = {"file_name": "d.json", "ranking": True, **entry}

    messages = RowAdapter(read(tmp_path, {"d": ranking}, "d").schema).adapt(row).messages

    assert [message["content"] for message in messages] == ["q", "a"]


def test_registry_openai_formatting_keeps_tool_calls(tmp_path: Path) -> None:
    """
    Turns with tool_calls are read, and the observation tag is the tool's role.
    """
    tags = {**ROLE_TAGS, "observation_tag": "tool"}
    entry = {
        "file_name": "d.json",
        "formatting": "openai",
        "columns": {"messages": "messages", "tools": "tools"},
        "tags": tags,
    }
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    row = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "1", "tool_call_id": "c"},
            {"role": "assistant", "content": "a"},
        ],
        "tools": '[{"name": "f"}]',
    }

    conversation = RowAdapter(read(tmp_path, {"d": entry}, "d").schema).adapt(row)

    assert conversation.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    assert conversation.messages[2]["tool_call_id"] == "c"
    assert conversation.tools == [{"name": "f"}]
    assert conversation.notes == []


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"ms_hub_url": "org/d"}, "must come from hf_hub_url or file_name, got ms_hub_url"),
        ({"om_hub_url": "org/d"}, "got om_hub_url"),
        ({"script_url": "loader"}, "got script_url"),
        ({"cloud_file_name": "s3://b/d.json"}, "got cloud_file_name"),
        ({"formatting": "alpaca"}, "must name its source"),
        ({"file_name": "d", "formatting": "chatml"}, "formatting must be one of alpaca, sharegpt"),
        ({"file_name": "d", "columns": {"prompt": "q"}}, "columns must list response"),
        ({"file_name": "d", "ranking": True}, "columns must list chosen"),
        ({"file_name": "d", "columns": {"promt": "q"}}, r"got 'promt'. Did you mean prompt\?"),
        (
            {"file_name": "d", "formatting": "sharegpt", "tags": {"role_tag": "role"}},
            "tags must list content_tag, user_tag, assistant_tag",
        ),
        (
            {"file_name": "d", "formatting": "sharegpt", "columns": {"system": "s"}},
            "columns must list messages",
        ),
        (
            {"file_name": "d", "columns": {"prompt": "q", "response": "a", "images": "i"}},
            "must be text conversations, got the column images",
        ),
        ({"file_name": "d", "num_samples": 0}, "num_samples must be a whole number"),
    ],
)
def test_registry_refuses_an_entry_that_it_cannot_read(
    tmp_path: Path, entry: dict[str, Any], problem: str
) -> None:
    """
    The message names the entry and the field, before anything is fetched.
    """
    with pytest.raises(ChatInputError, match=problem) as caught:
        read(tmp_path, {"d": entry}, "d")

    assert str(caught.value).startswith("data set 'd' in ")


def test_registry_answers_an_unknown_name_with_near_ones(tmp_path: Path) -> None:
    """
    A typo finds its entry, another name the list, a comment isn't an entry.
    """
    with pytest.raises(ChatInputError, match="must have an entry 'magpi', got none, but magpie"):
        read(tmp_path, SHIPPED, "magpi")
    with pytest.raises(ChatInputError, match=r"got tulu3, magpie, wildchat_1\.1m"):
        read(tmp_path, SHIPPED, "zzz")
    with pytest.raises(ChatInputError, match="got a str under that name"):
        read(tmp_path, SHIPPED, "_comment")


def test_registry_must_be_there_and_be_json(tmp_path: Path) -> None:
    """
    An absent or broken registry is named.
    """
    with pytest.raises(ChatInputError, match="must exist, got nothing there"):
        read_dataset_info(str(tmp_path), "d")
    (tmp_path / "dataset_info.json").write_text("{")
    with pytest.raises(ChatInputError, match="must be JSON, got"):
        read_dataset_info(str(tmp_path / "dataset_info.json"), "d")


def test_wrong_tag_on_one_source_of_a_mix_is_loud(tmp_path: Path) -> None:
    """
    The source whose tags don't fit stops with its roles; there, it would train on the other alone.
    """
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    wrong = {**ROLE_TAGS, "assistant_tag": "gpt"}
    registry = {
        "right": {**shared("messages", ROLE_TAGS, ""), "file_name": "rows.jsonl"},
        "wrong": {**shared("messages", wrong, ""), "file_name": "rows.jsonl"},
    }

    def transform(name: str) -> int:
        entry = read(tmp_path, registry, name)
        result = transform_conversations(
            input_path=entry.path,
            output_path=str(tmp_path / name),
            schema=entry.schema,
            files=("*.jsonl",),
        )
        return result["rows_out"]

    assert transform("right") == 3
    with pytest.raises(ChatInputError) as caught:
        transform("wrong")
    text = str(caught.value)
    assert "all 3 rows were refused (unknown role x3)" in text
    assert "'assistant' x3" in text
    assert "assistant=('gpt',)" in text
