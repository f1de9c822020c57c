"""A model card from records: where the model comes from, and how well it does."""

import json
from typing import Any

from neve import storage
from neve.records import read_record, read_step

_DOWNLOAD = "steps.download_hf:download_hf"
_NUMBERS = (
    ("heldout_loss", "held-out loss, nats per trained token"),
    ("heldout_loss_first", "held-out loss before training"),
    ("final_loss", "loss of the last train step"),
    ("num_train_steps", "train steps"),
    ("parameters", "parameters"),
)


def read_lineage(output_path: str) -> list[dict[str, Any]]:
    """Return the records of a step and of all that it was made from, dependencies first.

    A folder that no step made has none; a dependency whose record is gone is left out.
    """
    try:
        relative = read_step(output_path)["relative_path"]
    except FileNotFoundError:
        return []
    prefix = output_path.rstrip("/").removesuffix(relative)
    found: dict[str, dict[str, Any]] = {}

    def visit(path: str) -> None:
        try:
            record = read_record(path)
        except FileNotFoundError:
            return
        for dep in record["deps"].values():
            if dep["fingerprint"] not in found:
                visit(dep["path"] if "://" in dep["path"] else storage.join(prefix, dep["path"]))
        found.setdefault(record["fingerprint"], record)

    visit(output_path)
    return list(found.values())


def model_card(title: str, lineage: list[dict[str, Any]], license_name: str | None) -> str:
    """Return README.md: front matter that the hub reads, numbers, and every step with its fingerprint."""
    downloads = [_fields(record) for record in lineage if record["fn"] == _DOWNLOAD]
    models = _repos(downloads, "model")
    datasets = _repos(downloads, "dataset")
    front = [f"license: {json.dumps(license_name)}"] if license_name else []
    front += [f"base_model: {json.dumps(models[-1].partition('@')[0])}"] if models else []
    if datasets:
        front += ["datasets:", *(f"- {json.dumps(name.partition('@')[0])}" for name in datasets)]
    front += ["tags:", "- chat", "- neve"]
    lines = ["---", *front, "---", "", f"# {title}", ""]
    lines += [f"Base model: `{name}`" for name in models] + [f"Data: `{name}`" for name in datasets]
    lines += _numbers(lineage) + _mixture(lineage) + _steps(lineage)
    return "\n".join(lines).rstrip() + "\n"


def _numbers(lineage: list[dict[str, Any]]) -> list[str]:
    results: dict[str, Any] = {}
    for record in lineage:
        results |= record.get("results") or {}
    known = [(label, results[name]) for name, label in _NUMBERS if results.get(name) is not None]
    if not known:
        return []
    rows = [
        f"| {label} | {format(value, '.4g' if isinstance(value, float) else ',')} |"
        for label, value in known
    ]
    return ["", "## Numbers", "", "| what | value |", "|---|---|", *rows]


def _mixture(lineage: list[dict[str, Any]]) -> list[str]:
    sources = [
        source
        for record in lineage
        if record["fn"].endswith(":mix_datasets")
        for source in (record.get("results") or {}).get("sources", [])
    ]
    rows = [
        f"| {source['name']} | {source['used']:,} | {source['tokens']:,} | "
        f"{source['trained_tokens']:,} | {source['share']:.1%} |"
        for source in sources
    ]
    if not rows:
        return []
    head = [
        "| data set | conversations | tokens | trained tokens | share |",
        "|---|---|---|---|---|",
    ]
    return ["", "## Data", "", *head, *rows]


def _steps(lineage: list[dict[str, Any]]) -> list[str]:
    rows = []
    for record in lineage:
        code = record.get("code") or {}
        commit = (code.get("commit") or "")[:12] + ("+changes" if code.get("dirty") else "")
        if record["fn"] == _DOWNLOAD:
            pin = _pin(_fields(record))
        else:  # what was not made by a step is known by its content
            pin = "" if record["deps"] else f"files {record['manifest_digest'][:12]}"
        rows.append(f"| {record['name']} | `{record['fingerprint'][:12]}` | {commit} | {pin} |")
    if not rows:
        return []
    head = ["| step | fingerprint | commit of the code | pin |", "|---|---|---|---|"]
    return ["", "## Lineage", "", *head, *rows]


def _fields(record: dict[str, Any]) -> dict[str, Any]:
    return record["config"]


def _pin(fields: dict[str, Any]) -> str:
    return f"{fields['repo']}@{fields['revision']}"


def _repos(downloads: list[dict[str, Any]], kind: str) -> list[str]:
    """Return the pins of one kind, each once."""
    pins = [_pin(fields) for fields in downloads if fields["repo_type"] == kind]
    return list(dict.fromkeys(pins))
