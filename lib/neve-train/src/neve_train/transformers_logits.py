"""Logits of a Hugging Face folder by transformers: python transformers_logits.py FOLDER IDS KEEP LOGITS

Run as a file by the interpreter of any environment with torch and transformers 4.56 or newer: it imports
nothing of ours. IDS is a .npy of int32[row, position]; LOGITS becomes one of float32[row, KEEP, vocab], those
of the last KEEP positions, computed on the CPU in float32. Prints the versions as one JSON line.
"""

import json
import sys

import numpy as np


def main(folder: str, ids_path: str, keep: int, logits_path: str) -> None:
    """Writes the logits; any failure ends the process with a traceback."""
    import torch  # pyright: ignore[reportMissingImports]  not in our environment
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    ).eval()
    ids = torch.from_numpy(np.load(ids_path).astype(np.int64))
    with torch.inference_mode():
        rows = [
            model(input_ids=row[None], use_cache=False, logits_to_keep=keep).logits[0].numpy()
            for row in ids
        ]
    np.save(logits_path, np.stack(rows))
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    sys.stdout.write("\n" + json.dumps(versions) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
