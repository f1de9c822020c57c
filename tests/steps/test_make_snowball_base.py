"""The tiny recipe's base model: tokenizer and weights made from text and a seed."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from neve.errors import InputError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from steps.make_snowball_base import (
    MakeSnowballBaseConfig,
    draw_tensors,
    make_snowball_base,
    tensor_shapes,
)
from steps.make_tokenizer import (
    LLAMA3_SPLIT,
    SPECIAL_TOKENS,
    MakeTokenizerConfig,
    make_tokenizer,
    snowball_hf_config,
)

SMALL = {
    "vocab_size": 320,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "expert_width": 8,
    "shared_width": 16,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("corpus")
    rows = [
        {"messages": [{"role": "user", "content": f"count the lines of notes{i}.txt, please"}]}
        for i in range(40)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.fixture(scope="module")
def base(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_tokenizer(MakeTokenizerConfig(corpus=corpus, **SMALL), str(folder / "tokenizer"))
    config = MakeSnowballBaseConfig(input=str(folder / "tokenizer"), seed=3)
    make_snowball_base(config, str(folder / "model"))
    return folder / "model"


def test_tokenizer_has_the_special_tokens_of_marin_in_order(base: Path) -> None:
    """Special ids follow the learned tokens in Llama 3's order and reserved ones fill the rest."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))

    first = tokenizer.token_to_id("<|begin_of_text|>")
    # marin-tokenizer: 128000 begin of text, 128006 start header, 128009 end of turn.
    assert tokenizer.token_to_id("<|start_header_id|>") == first + 6
    assert tokenizer.token_to_id("<|eot_id|>") == first + 9
    assert tokenizer.get_vocab_size() == 320
    assert tokenizer.id_to_token(319) == (
        f"<|reserved_special_token_{319 - first - len(SPECIAL_TOKENS) + 3}|>"
    )


@pytest.mark.parametrize(
    "text", ["plain", "  two\n\n three\t", "naïve 北京 \N{GRINNING FACE}", "it's 12345", "\x00\x7f"]
)
def test_tokenizer_round_trips_any_text(base: Path, text: str) -> None:
    """Byte-level BPE loses nothing, whatever the text."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))

    ids = tokenizer.encode(text, add_special_tokens=False).ids

    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_tokenizer_adds_one_begin_of_text_when_asked(base: Path) -> None:
    """The post-processor puts BOS first, as Llama 3's; a rendered text is encoded without it."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    bos = tokenizer.token_to_id("<|begin_of_text|>")

    assert tokenizer.encode("hi").ids[0] == bos
    assert tokenizer.encode("<|begin_of_text|>hi", add_special_tokens=False).ids.count(bos) == 1


def test_tokenizer_splits_as_llama3(base: Path) -> None:
    """The pre-tokenizer is Llama 3's regex: three digits at most, newlines with symbols."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))

    assert tokenizer.pre_tokenizer is not None
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("a 12345 it's {\n b")]

    # By hand from the regex; G is the byte-level space, C the newline.
    assert pieces == ["a", "Ġ", "123", "45", "Ġit", "'s", "Ġ{Ċ", "Ġb"]
    assert (
        LLAMA3_SPLIT
        in json.loads((base / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"][0][
            "pattern"
        ].values()
    )


def test_transformers_loads_the_tokenizer_folder(base: Path) -> None:
    """AutoTokenizer gives the same ids and knows begin and end of text."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "t = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])\n"
        "print(t.bos_token_id, t.eos_token_id, len(t), t('count the lines')['input_ids'])\n"
    )
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    bos = tokenizer.token_to_id("<|begin_of_text|>")

    done = subprocess.run(
        [sys.executable, "-c", code, str(base)], capture_output=True, text=True, check=True
    )

    ids = tokenizer.encode("count the lines").ids
    assert done.stdout.strip() == f"{bos} {bos + 1} 320 {ids}"


def test_same_corpus_and_seed_give_the_same_bytes_in_another_process(
    base: Path, corpus: str, tmp_path: Path
) -> None:
    """Neither the hash seed nor the number of threads changes a byte of any file."""
    code = (
        "import json, sys\n"
        "from steps.make_snowball_base import *\n"
        "from steps.make_tokenizer import *\n"
        "corpus, out, shape = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])\n"
        "make_tokenizer(MakeTokenizerConfig(corpus=corpus, **shape), out + '/tokenizer')\n"
        "base = MakeSnowballBaseConfig(input=out + '/tokenizer', seed=3)\n"
        "make_snowball_base(base, out + '/model')\n"
    )
    environment = {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1", "PYTHONPATH": "."}

    arguments = [corpus, str(tmp_path), json.dumps(SMALL)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=environment)

    names = sorted(path.name for path in base.iterdir())
    assert names == [
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for name in names:
        assert (tmp_path / "model" / name).read_bytes() == (base / name).read_bytes()


def test_tensors_of_the_67b_shape_are_the_published_ones() -> None:
    """The published config gives its 502 tensors and 67,078,882,816 parameters."""
    published = MakeTokenizerConfig(
        corpus="",
        vocab_size=128256,
        hidden_size=2560,
        num_layers=26,
        num_heads=20,
        num_kv_heads=5,
        head_dim=128,
        num_experts=256,
        num_experts_per_token=4,
        expert_width=1280,
        shared_width=2560,
        max_position_embeddings=262144,
        sliding_window=2048,
    )

    config = snowball_hf_config(published)
    shapes = dict(tensor_shapes(config))

    assert len(shapes) == 502
    assert sum(math.prod(shape) for shape in shapes.values()) == 67_078_882_816
    assert shapes["model.layers.25.mlp.experts.down_proj.weight"] == (256, 2560, 1280)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (640, 2560)
    assert config["initializer_range"] == 0.0098821


def test_weights_follow_levanters_initializer(base: Path) -> None:
    """Norms are one, gates and router biases zero, the rest within three standard deviations."""
    tensors = load_file(base / "model.safetensors")
    scale = json.loads((base / "config.json").read_text())["initializer_range"]

    assert scale == 0.125  # 0.5 / sqrt(16)
    assert np.all(tensors["model.norm.weight"] == 1)
    assert np.all(tensors["model.layers.0.mlp.router.bias"] == 0)
    assert np.all(tensors["model.layers.1.self_attn.attn_gate.weight"] == 0)
    embedding = tensors["model.embed_tokens.weight"]
    assert embedding.dtype == np.float32
    assert np.abs(embedding).max() <= 3 * scale
    # A normal cut at 3 has a standard deviation of 0.9866; 5,120 draws scatter by 1 %.
    assert abs(embedding.std() / scale - 0.9866) < 0.05


def test_seed_changes_every_drawn_tensor_and_layers_differ(base: Path) -> None:
    """Another seed draws other numbers, and no two layers share theirs."""
    config = json.loads((base / "config.json").read_text())

    one, two = draw_tensors(config, 3), draw_tensors(config, 4)

    query = "model.layers.{}.self_attn.q_proj.weight"
    assert not np.array_equal(one[query.format(0)], two[query.format(0)])
    assert not np.array_equal(one[query.format(0)], one[query.format(1)])


def test_counts_are_returned(base: Path, tmp_path: Path) -> None:
    """The results name parameters, and active ones without idle experts and embedding tables."""
    result = make_snowball_base(MakeSnowballBaseConfig(input=str(base)), str(tmp_path))

    tensors = load_file(tmp_path / "model.safetensors")
    assert result["parameters"] == sum(tensor.size for tensor in tensors.values())
    # 2 layers x 2 idle experts x 3 x 16 x 8 = 1,536; tables 2 x 320 x 16 = 10,240.
    assert result["parameters"] - result["active_parameters"] == 1_536 + 10_240


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 200}, "vocab_size must be at least 267"),
        ({"num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads"),
        ({"num_experts": 2}, "num_experts must be greater than num_experts_per_token"),
        ({"head_dim": 6}, "head_dim must be a multiple of 4"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, int], message: str) -> None:
    """A shape that Snowball can't have is refused when the config is made."""
    with pytest.raises(InputError, match=message):
        dataclasses.replace(MakeTokenizerConfig(corpus="x"), **change)


def test_corpus_without_text_is_refused(tmp_path: Path) -> None:
    """Rows without a text column give a sentence that names the columns looked for."""
    (tmp_path / "rows.jsonl").write_text('{"other": "x"}\n')

    with pytest.raises(InputError, match="must hold text, got none"):
        make_tokenizer(MakeTokenizerConfig(corpus=str(tmp_path)), str(tmp_path / "out"))


def test_incomplete_input_folder_is_refused(tmp_path: Path) -> None:
    """A folder without config.json is named, with what to pass instead."""
    with pytest.raises(InputError, match=r"must hold config\.json"):
        make_snowball_base(MakeSnowballBaseConfig(input=str(tmp_path)), str(tmp_path / "out"))
