"""What counts for identity: tokenizers as files (case 002), what is in the key (case 008)."""

import json
from typing import Any

import pytest
from neve import ExecutorStep, InputError, unhashed
from neve.codec import Decoder, Encoder
from neve.identity import fingerprint_of
from sample_steps import SampleConfig, write_files
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

OUTSIDE_THE_KEY = ("exec", "env", "output_dir", "tokenizer_path")


def tokenizer() -> Tokenizer:
    """Return a live tokenizer."""
    return Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="b"))


def fingerprint(config: Any) -> str:
    """Return the fingerprint of a tokenize step with a config."""
    return fingerprint_of(ExecutorStep(name="tokenize", fn=write_files, config=config))


def test_config_refuses_a_live_tokenizer_by_field() -> None:
    """Case 002: a live tokenizer object in a config is refused with the path of its field."""
    with pytest.raises(InputError, match=r"calls.*must have a canonical form.*Tokenizer"):
        fingerprint(SampleConfig(calls=tokenizer()))
    with pytest.raises(InputError, match=r"\['tokenizer'\]\['fast'\]"):
        fingerprint({"tokenizer": {"fast": tokenizer()}})


def test_config_takes_a_tokenizer_as_files() -> None:
    """Case 002: a tokenizer that a step wrote keeps one identity however much it is used."""
    live = tokenizer()

    def fetched(revision: str) -> ExecutorStep:
        return ExecutorStep(name="fetch", fn=write_files, config={"revision": revision})

    def identity(revision: str = "1111") -> str:
        return fingerprint({"tokenizer": fetched(revision) / "tokenizer.json"})

    before = identity()
    live.enable_truncation(4)
    live.encode("a b a")
    assert identity() == before
    assert identity("2222") != before
    config = {"tokenizer": fetched("1111") / "tokenizer.json"}
    tree = Encoder(identity=False).encode(config, "config")
    decoded = Decoder(lambda node: f"/out/{node['part']}", str).decode(tree)
    assert decoded == {"tokenizer": "/out/tokenizer.json"}


ROWS: list[tuple[str, bool, dict[str, Any], dict[str, Any]]] = [
    (
        "data_files", True,
        {"data": {"path": "json", "data_files": "a.jsonl"}, "tokenizer": "tiny@1111"},
        {"data": {"path": "json", "data_files": "b.jsonl"}, "tokenizer": "tiny@1111"},
    ),
    (
        "data_same_name_new_content", True,
        {"data": {"path": "a.jsonl", "sha256": "00aa"}, "tokenizer": "tiny@1111"},
        {"data": {"path": "a.jsonl", "sha256": "00bb"}, "tokenizer": "tiny@1111"},
    ),
    (
        "tokenizer_name", True,
        {"data": "d@1", "tokenizer": "tiny@1111"}, {"data": "d@1", "tokenizer": "other@1111"},
    ),
    (
        "tokenizer_revision", True,
        {"data": "d@1", "tokenizer": "tiny@1111"}, {"data": "d@1", "tokenizer": "tiny@2222"},
    ),
    (
        "chat_template_text", True,
        {"data": "d@1", "tokenizer": "tiny@1111", "chat_template": "{{ messages }}"},
        {"data": "d@1", "tokenizer": "tiny@1111", "chat_template": "{{ messages }} "},
    ),
    (
        "train_on_role", True,
        {"data": "d@1", "train_on": ["assistant"]},
        {"data": "d@1", "train_on": ["assistant", "tool"]},
    ),
    ("seq_len", True, {"data": "d@1", "seq_len": 512}, {"data": "d@1", "seq_len": 1024}),
    (
        "output_dir", False,
        {"data": "d@1", "output_dir": "/tmp/run1"}, {"data": "d@1", "output_dir": "/tmp/run2"},
    ),
    (
        "modified_tokenizer_saved_under_output_dir", False,
        {"data": "d@1", "tokenizer_path": "/tmp/run1/tok", "tokenizer_digest": "9f"},
        {"data": "d@1", "tokenizer_path": "/tmp/run2/tok", "tokenizer_digest": "9f"},
    ),
    (
        "writer_batch_size", False,
        {"data": "d@1", "exec": {"writer_batch_size": 1000}},
        {"data": "d@1", "exec": {"writer_batch_size": 2}},
    ),
    (
        "num_workers", False,
        {"data": "d@1", "exec": {"num_proc": 1}}, {"data": "d@1", "exec": {"num_proc": 8}},
    ),
    (
        "secrets", False,
        {"data": "d@1", "env": {"HF_TOKEN": "x"}}, {"data": "d@1", "env": {"HF_TOKEN": "y"}},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_key_holds_what_changes_the_result(
    row: tuple[str, bool, dict[str, Any], dict[str, Any]],
) -> None:
    """Case 008: fingerprints differ exactly where the result may differ."""
    _, must_differ, *sides = row
    first, second = (
        {k: unhashed(v) if k in OUTSIDE_THE_KEY else v for k, v in side.items()} for side in sides
    )
    assert json.dumps(sides[0]) != json.dumps(sides[1])
    assert (fingerprint(first) != fingerprint(second)) is must_differ
