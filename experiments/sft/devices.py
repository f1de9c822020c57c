"""Whether a recipe's batch divides over the devices of an accelerator."""

from neve import InputError

from experiments.sft.spec import SFTSpec


def check_devices(spec: SFTSpec, accelerator: str) -> dict[str, int]:
    """Returns the mesh axis sizes for an accelerator such as `32xH100`.

    Raises:
        InputError: The mesh doesn't fit the devices, or batch or seq_len doesn't divide over the mesh.
    """
    count = accelerator.partition("x")[0]
    if not count.isdigit() or int(count) < 1:
        raise InputError(
            f"--accelerator: must be <count>x<kind> such as 32xH100 or 8xcpu, got {accelerator!r}. Change it."
        )
    sizes = spec.mesh.sizes(int(count))
    batch_parts = sizes["data"] * sizes["expert"]
    if spec.batch_size % batch_parts:
        better = -(-spec.batch_size // batch_parts) * batch_parts
        raise InputError(
            f"spec {spec.name!r}: batch_size must be divisible by the {batch_parts} parts of the "
            f"batch (data {sizes['data']} x expert {sizes['expert']} on {accelerator}), got "
            f"{spec.batch_size}. Pass --spec.batch_size {better}."
        )
    if spec.seq_len % sizes["context"]:
        raise InputError(
            f"spec {spec.name!r}: seq_len must be divisible by the context axis of {sizes['context']}, got "
            f"{spec.seq_len}. Change seq_len or mesh.context."
        )
    rows = spec.batch_size // batch_parts
    if spec.per_device_batch_size is not None and rows % spec.per_device_batch_size:
        raise InputError(
            f"spec {spec.name!r}: per_device_batch_size must divide the {rows} rows of a device, got "
            f"{spec.per_device_batch_size}. Pass a divisor of {rows}."
        )
    return sizes
