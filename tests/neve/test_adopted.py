"""Adopted data: a complete step without a copy."""

from collections.abc import Callable
from pathlib import Path

import pytest
from neve import InputError, adopt, make_plan
from neve.identity import fingerprint_of


def test_adopt_uses_data_in_place(
    run_recipe: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Dependents read the foreign path, nothing is written there, its state is under the prefix."""
    data = tmp_path / "foreign"
    data.mkdir()
    (data / "x.txt").write_text("old")
    body = f"""
data = adopt("model", {str(data)!r})
config = SampleConfig(text="new ", inputs=(data / "x.txt",))
steps = [ExecutorStep(name="s", fn=write_files, config=config)]
"""
    assert run_recipe(body)[0] == 0

    prefix = tmp_path / "prefix"
    assert next(prefix.glob("s-*/out.txt")).read_text() == "new old"
    assert [p.name for p in data.iterdir()] == ["x.txt"]
    assert next(prefix.glob("model-*/.neve/record.json")).exists()
    plan = make_plan([adopt("model", str(data))], str(prefix))
    assert [(row.action, row.output_path) for row in plan.rows] == [("hit", str(data))]


def test_adopt_identity_follows_content(tmp_path: Path) -> None:
    """Moved data keeps its fingerprint, changed data gets another; absent data is refused."""
    found = []
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(text)
        found.append(fingerprint_of(adopt("model", str(tmp_path / name))))

    assert found[0] == found[1] != found[2]
    with pytest.raises(InputError, match="must exist"):
        adopt("model", str(tmp_path / "nothing"))
