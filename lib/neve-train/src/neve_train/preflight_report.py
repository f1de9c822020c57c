"""What is known of a training before it runs, as values and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neve_train.accelerators import usable_fraction
from neve_train.preflight_fit import Planned, gigabytes, reasons_against, would_fit
from neve_train.preflight_memory import flops_per_token

__all__ = ["CONTEXT_LENGTHS", "MFUS", "make_report", "report_text"]

CONTEXT_LENGTHS = tuple(2**power for power in range(12, 19))
"""Row lengths of the table: 4,096 to 262,144."""

MFUS = (0.1, 0.2, 0.4)
"""Shares of the peak speed that train steps are timed at; nothing here was measured."""

TABLE_MFU = 0.2


def make_report(planned: Planned) -> dict[str, Any]:
    """Returns everything that is known of a training before it runs, as JSON values."""
    work, accelerator, shape = planned.work, planned.accelerator, planned.shape
    memory = planned.memory()
    active, flops = flops_per_token(shape, planned.num_parameters, work.seq_len)
    positions = work.batch_size * work.seq_len
    weights = [leaf for leaf in planned.leaves if leaf.part == "weights"]
    reasons = reasons_against(planned, memory)
    num_hosts = -(-work.num_devices // accelerator.devices_per_host)
    return {
        "name": planned.name,
        "accelerator": accelerator.name,
        "num_devices": work.num_devices,
        "num_hosts": num_hosts,
        "mesh": dict(work.sizes),
        "model": {
            "family": planned.family,
            "parameters": planned.num_parameters,
            "active_parameters": active,
            "parameters_per_device": sum(leaf.size_on_device(work.sizes) for leaf in weights),
            "max_seq_len": shape.max_seq_len,
        },
        "train_step": {
            "rows": work.batch_size,
            "seq_len": work.seq_len,
            "positions": positions,
            "positions_per_device": positions // work.num_devices,
            "microbatches": work.num_microbatches,
            "rows_per_microbatch_and_device": work.rows,
            "flops_per_position": flops,
            "seconds_at_mfu": _seconds(planned, flops, positions),
            "num_train_steps": planned.num_train_steps,
        },
        "bytes_per_device": {
            **memory.to_dict(),
            "capacity": accelerator.memory_bytes,
            "usable": accelerator.usable_bytes,
        },
        "bytes_of_host_memory_per_process": {
            **planned.host_bytes,
            "total": sum(planned.host_bytes.values()),
        },
        "bytes_on_storage": {
            "checkpoint": sum(
                leaf.size * leaf.itemsize for leaf in planned.leaves if leaf.is_trained
            ),
            "export": planned.num_parameters * planned.export_itemsize,
        },
        "contexts": [_context(planned, length) for length in CONTEXT_LENGTHS],
        "fits": not reasons,
        "reasons": reasons,
        "would_fit": would_fit(planned) if reasons else [],
    }


def _seconds(planned: Planned, flops: float, positions: int) -> dict[str, float] | None:
    peak = planned.accelerator.peak_flops
    if peak is None:
        return None
    total = flops * positions / (peak * planned.work.num_devices)
    return {f"{mfu:g}": round(total / mfu, 3) for mfu in MFUS}


def _context(planned: Planned, length: int) -> dict[str, Any]:
    changed = planned.with_work(seq_len=length)
    row: dict[str, Any] = {
        "seq_len": length,
        "is_within_model": length <= planned.shape.max_seq_len,
        "peak": None,
        "fits": False,
    }
    if changed is not None:
        _, flops = flops_per_token(planned.shape, planned.num_parameters, length)
        positions = planned.work.batch_size * length
        memory = changed.memory()
        row |= {
            "positions": positions,
            "peak": memory.peak,
            "fullest_moment": memory.fullest,
            "seconds_at_mfu": _seconds(changed, flops, positions),
            "fits": changed.fits() and row["is_within_model"],
        }
    return row


_PARTS = {
    "weights": "weights",
    "optimizer": "optimizer",
    "gradients": "gradients, for the update",
    "compute_copy": "weights in the compute type",
    "layer_gradients": "gradients in the compute type",
    "hidden_states": "hidden states kept",
    "layer": "one layer, forward and backward",
    "loss": "logits and head",
}


def report_text(report: Mapping[str, Any]) -> str:
    """Returns a report as people read it."""
    model, step = report["model"], report["train_step"]
    memory, host = report["bytes_per_device"], report["bytes_of_host_memory_per_process"]
    storage = report["bytes_on_storage"]
    mesh = " x ".join(f"{name} {size}" for name, size in report["mesh"].items() if size > 1)
    hosts = f"{report['num_hosts']:,} host{'s' if report['num_hosts'] > 1 else ''}"
    microbatches = f", {step['microbatches']} microbatches" if step["microbatches"] > 1 else ""
    lines = [
        f"Preflight of {report['name']} on {report['num_devices']}x{report['accelerator']} ({hosts})",
        f"  model       {model['family']}, {model['parameters']:,} parameters, "
        f"{model['active_parameters']:,} multiply with each token",
        f"  mesh        {mesh or '1 device'}: {model['parameters_per_device']:,} parameters per device",
        f"  train step  {step['rows']:,} rows x {step['seq_len']:,} = {step['positions']:,} tokens"
        f"{microbatches}; {_times(step['seconds_at_mfu'])}",
        f"  storage     checkpoint {gigabytes(storage['checkpoint'])}, export {gigabytes(storage['export'])}",
        f"  host memory {gigabytes(host['total'])} per process ("
        + ", ".join(
            f"{name.replace('_', ' ')} {gigabytes(host[name])}" for name in host if name != "total"
        )
        + ")",
        "",
        "  memory of a device (estimated, except for weights and optimizer)",
        *(f"    {label:<32} {gigabytes(memory[part]):>10}" for part, label in _PARTS.items()),
        f"    {'most at once':<32} {gigabytes(memory['peak']):>10}  at: {memory['fullest_moment']}",
    ]
    if memory["usable"] is not None:
        lines.append(
            f"    {'can be used':<32} {gigabytes(memory['usable']):>10}  "
            f"{usable_fraction():.0%} of {gigabytes(memory['capacity'])}"
        )
    lines += ["", *_context_lines(report), "", *_verdict(report)]
    return "\n".join(lines)


def _context_lines(report: Mapping[str, Any]) -> list[str]:
    lines = [f"  {'row length':>12} {'tokens/step':>13} {'memory':>10} {'s/step':>9}  fits"]
    for row in report["contexts"]:
        if row["peak"] is None:
            lines.append(f"  {row['seq_len']:>12,} {'':>13} {'':>10} {'':>9}  no: doesn't divide")
            continue
        seconds = row["seconds_at_mfu"]
        time = "" if seconds is None else f"{seconds[f'{TABLE_MFU:g}']:,.1f}"
        verdict = "yes" if row["fits"] else "no"
        if not row["is_within_model"]:
            verdict = f"no: the model allows {report['model']['max_seq_len']:,}"
        elif report["bytes_per_device"]["usable"] is None:
            verdict = "not judged"
        mark = " <" if row["seq_len"] == report["train_step"]["seq_len"] else ""
        lines.append(
            f"  {row['seq_len']:>12,} {row['positions']:>13,} {gigabytes(row['peak']):>10} {time:>9}  "
            f"{verdict}{mark}"
        )
    return lines


def _verdict(report: Mapping[str, Any]) -> list[str]:
    where = f"{report['num_devices']}x{report['accelerator']}"
    if report["fits"]:
        judged = report["bytes_per_device"]["usable"] is not None
        return [f"  fits {where}" if judged else "  memory of a CPU isn't judged"]
    lines = [f"  does not fit {where}: {'; '.join(report['reasons'])}."]
    for row in report["would_fit"]:
        if row["change"] is None:
            lines.append(f"    not enough  {row['what']}: nothing else can be tried")
            continue
        start = "would fit   " if row["fits"] else f"not enough  {row['what']}: "
        lines.append(f"    {start}{row['change']}  ({gigabytes(row['peak'])})")
    return lines


def _times(seconds: Mapping[str, float] | None) -> str:
    if seconds is None:
        return "no time known for a CPU"
    times = ", ".join(f"{value:,.1f} s at {float(mfu):.0%}" for mfu, value in seconds.items())
    return f"{times} MFU (assumed)"
