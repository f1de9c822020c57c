"""Who may import whom: the arrows of the rooms, read from every import statement."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "experiments": ROOT / "experiments",
    "steps": ROOT / "steps",
    "neve": ROOT / "lib/neve/src/neve",
    "neve_chat": ROOT / "lib/neve-chat/src/neve_chat",
    "neve_train": ROOT / "lib/neve-train/src/neve_train",
}
ALLOWED = {
    "experiments": {"experiments", "steps", "neve"},
    "steps": {"neve", "neve_chat", "neve_train"},
    "neve_train": {"neve_train", "neve_chat", "neve.storage"},
    "neve_chat": {"neve_chat", "neve.storage"},
    "neve": {"neve"},
}
HEAVY = {"jax", "levanter", "haliax", "equinox", "optax"}
PLANNING_IS_FREE_OF = HEAVY | {
    "transformers",
    "datasets",
    "torch",
    "tensorflow",
    "pyarrow",
    "tensorstore",
}


def modules(room: str) -> list[Path]:
    """Returns every Python file of a room."""
    return sorted(ROOMS[room].rglob("*.py"))


def imported(path: Path) -> list[tuple[str, int, bool]]:
    """Returns (module, line, whether it is imported at the top of the file) of every import."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [
                (f"{node.module}.{alias.name}", node.lineno, id(node) in top)
                for alias in node.names
            ]
    return found


def violations(room: str, path: Path) -> list[str]:
    """Returns a line for each import of `path` that its room does not allow."""
    bad = []
    for module, line, _ in imported(path):
        target = module.partition(".")[0]
        if target not in ROOMS:
            continue
        is_helper = module.startswith("steps._")
        allowed = any(module == name or module.startswith(f"{name}.") for name in ALLOWED[room])
        if not allowed and not (room == "steps" and is_helper):
            bad.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    return bad


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_rooms_import_only_along_the_arrows(room: str) -> None:
    """No room imports one that depends on it, and no step imports another step."""
    bad = [line for path in modules(room) for line in violations(room, path)]

    assert bad == []


def test_arrows_see_a_forbidden_import(tmp_path: Path) -> None:
    """The check finds a lazy import against the arrows."""
    module = tmp_path / "x.py"
    module.write_text("def f():\n    from neve_train.mesh import check_mesh\n")

    found = [name for name, _, _ in imported(module)]

    assert found == ["neve_train.mesh.check_mesh"]
    assert not any(found[0].startswith(name) for name in ALLOWED["neve_chat"])


def test_only_neve_train_imports_jax_and_levanter() -> None:
    """jax and Levanter stay behind one room."""
    bad = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for room in ROOMS
        if room != "neve_train"
        for path in modules(room)
        for module, line, _ in imported(path)
        if module.partition(".")[0] in HEAVY
    ]

    assert bad == []


@pytest.mark.parametrize("room", ["experiments", "steps", "neve"])
def test_recipes_and_steps_import_nothing_heavy_at_the_top(room: str) -> None:
    """What planning imports loads no ML library."""
    bad = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in modules(room)
        if "data" not in path.parts
        for module, line, at_top in imported(path)
        if at_top and module.partition(".")[0] in PLANNING_IS_FREE_OF
    ]

    assert bad == []


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_modules_stay_under_five_hundred_lines(room: str) -> None:
    """A module that outgrows 500 lines is split by concern."""
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules(room)
    }

    assert {name: size for name, size in sizes.items() if size > 500} == {}
