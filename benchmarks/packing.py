"""How full rows of 32,768 tokens get: neve's best fit beside Levanter's greedy packer, in one run.

    python -m benchmarks.packing [--json] [--large N]

Lengths as in benchmarks/lengths.py. The last line is one JSON object with --json: fill and
levanter_fill (share of positions that hold a token, 0 to 1), rows of each, and seconds.
"""

import argparse
import json
import time

from neve_chat.packing import MAX_SEGMENTS, pack_best_fit

from benchmarks.lengths import conversation_lengths

SEQ_LEN = 32_768


def main() -> None:
    parser = argparse.ArgumentParser(description="How full rows get, beside Levanter.")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--large", type=int, default=1_000_000, help="conversations to time")
    options = parser.parse_args()
    lengths = conversation_lengths(seq_len=SEQ_LEN)
    ours, seconds = best_fit_rows(lengths)
    levanters, levanter_seconds = greedy_rows(lengths)
    _, large_seconds = best_fit_rows(conversation_lengths(options.large, seq_len=SEQ_LEN))
    tokens = int(lengths.sum())
    facts = {
        "conversations": len(lengths),
        "tokens": tokens,
        "seq_len": SEQ_LEN,
        "fill": tokens / (ours * SEQ_LEN),
        "levanter_fill": tokens / (levanters * SEQ_LEN),
        "rows": ours,
        "levanter_rows": levanters,
        "separate_rows": len(lengths),
        "seconds": round(seconds, 4),
        "levanter_seconds": round(levanter_seconds, 4),
        "large_conversations": options.large,
        "large_seconds": round(large_seconds, 2),
    }
    print(f"{len(lengths):,} conversations, {tokens:,} tokens, rows of {SEQ_LEN:,}")
    print(f"  best fit          {ours:5,} rows, {facts['fill']:.2%} full, {seconds:.3f} s")
    print(
        f"  Levanter's greedy {levanters:5,} rows, {facts['levanter_fill']:.2%} full, "
        f"{levanter_seconds:.3f} s"
    )
    print(f"  one in each       {len(lengths):5,} rows, {tokens / len(lengths) / SEQ_LEN:.2%} full")
    print(f"best fit of {options.large:,} conversations: {large_seconds:.2f} s")
    if options.json:
        print(json.dumps(facts))


def best_fit_rows(lengths) -> tuple[int, float]:
    """Return the number of rows that neve makes, and seconds."""
    started = time.perf_counter()
    _, row_ends = pack_best_fit(lengths, SEQ_LEN)
    return len(row_ends), time.perf_counter() - started


def greedy_rows(lengths) -> tuple[int, float]:
    """Return the number of rows that Levanter's packer makes, and seconds without its import."""
    from levanter.data.packing import pack_documents

    started = time.perf_counter()
    rows = pack_documents(lengths, SEQ_LEN, MAX_SEGMENTS, "raise")
    return len(rows), time.perf_counter() - started


if __name__ == "__main__":
    main()
