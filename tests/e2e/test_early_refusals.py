"""What only a light step can know is refused there: exit 2, one sentence, no weight fetched."""

import json
from pathlib import Path

import pytest

from tests.e2e import recipes
from tests.e2e.toy_hub import add_h100_repositories
from tests.hub.server import LocalHub

ARGS = ("--accelerator", "8xcpu", "--spec.mesh.context", "2", "--spec.seq_len", "512")


def refused(prefix: Path, endpoint: str, *args: str, **env: str) -> str:
    """Runs the recipe, which must end with exit 2 and no traceback; returns what it printed."""
    environment = recipes.environment(
        prefix, HF_ENDPOINT=endpoint, HF_HOME=str(prefix / "hf"), **env
    )
    done = recipes.run(recipes.H100, *ARGS, *args, env=environment)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(prefix.glob("models/*/*.safetensors"))
    return done.stdout + done.stderr


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_private_repository_without_a_right_token_is_exit_2(
    token: str | None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """401 names the variable to set, and a bad token is never shown."""
    hub = LocalHub(tokens=("hf_right",))
    add_h100_repositories(hub, tmp_path_factory.mktemp("repositories"), private=True)
    env = {} if token is None else {"HF_TOKEN": token}

    with hub.serving() as endpoint:
        printed = refused(tmp_path, endpoint, **env)

    assert "HF_TOKEN" in printed
    assert "hf_wrong" not in printed


def test_seq_len_beyond_the_model_is_exit_2_before_weights(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The model's own limit is read from its config before its weights are fetched."""
    hub = LocalHub()
    add_h100_repositories(hub, tmp_path_factory.mktemp("repositories"))

    with hub.serving() as endpoint:
        printed = refused(tmp_path, endpoint, "--spec.seq_len", "4096")

    assert "4096" in printed.replace(",", "")
    assert "1024" in printed.replace(",", "")
    fetched = [request.path for request in hub.requests if request.path.endswith(".safetensors")]
    assert fetched == []


def test_zero_assistant_turns_is_exit_2_and_lists_the_roles(tmp_path: Path) -> None:
    """A source in which nothing would be trained names the roles it saw and the tags to pass."""
    rows = [
        {"conversations": [{"from": "human", "value": f"q{i}"}, {"from": "model", "value": "a"}]}
        for i in range(5)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.py").write_text(
        "from experiments.sft.configs.snowball_tiny import SPEC as TINY\n"
        "from experiments.sft.launcher import run_sft_cli\n"
        "from experiments.sft.sources import LocalData\n"
        "from experiments.sft.spec import ConversationSchema, DatasetSpec, SFTSpec\n"
        f"DATA = DatasetSpec(name='chats', source=LocalData(path={str(tmp_path / 'chats.jsonl')!r}),\n"
        "    schema=ConversationSchema(kind='sharegpt'))\n"
        "SPEC = SFTSpec(name='x', model=TINY.model, mesh=TINY.mesh, datasets=(DATA,), num_train_steps=1)\n"
        "if __name__ == '__main__':\n    run_sft_cli(SPEC, default_accelerator='1xcpu')\n"
    )
    prefix = tmp_path / "prefix"
    env = recipes.environment(prefix, PYTHONPATH=f"{tmp_path}:{recipes.ROOT}")

    done = recipes.run("recipe", env=env)

    printed = done.stdout + done.stderr
    assert done.returncode == 2, printed
    assert "model" in printed
    assert "assistant" in printed
    assert "Traceback" not in printed
