"""Measure the cells of a certificate in several processes, on one GPU or many cores.

    python benchmarks/certify_shards.py MODEL OUTPUT --items 200 --shards 8 --device cuda

`semblend certify --records OUTPUT` reads the files. A tiny model keeps a GPU busy only when
several processes feed it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from semblend.quality.items import to_item
from semblend.quality.lab import Lab


def main() -> None:
    """Start the shards, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--shard", type=int, default=-1, help="(one process's part)")
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--capacity", type=int, default=400_000, help="tokens of each pool")
    parser.add_argument("--data", type=Path, help="real questions, in LongBench's form")
    parser.add_argument("--workloads", default="", help="only these, with commas, in this order")
    parser.add_argument("--known", type=Path, help="JSON pairs of case and policy to leave out")
    parser.add_argument("--only", default="", help="measure only policies that contain this")
    parser.add_argument("--curves", type=int, default=24, help="items of each deviation curve")
    options = parser.parse_args()
    if options.shard >= 0:
        measure_shard(options)
        return
    started = time.perf_counter()
    processes = [
        subprocess.Popen([sys.executable, *sys.argv, "--shard", str(number)])
        for number in range(options.shards)
    ]
    codes = [process.wait() for process in processes]
    print(f"{len(codes)} shards, exit codes {codes}, {time.perf_counter() - started:.0f} s")
    sys.exit(max(codes))


def measure_shard(options: argparse.Namespace) -> None:
    """One process: the deviation curves, then every cell's share of items."""
    import torch

    from semblend.engine.model import load_model
    from semblend.quality.certifying import certificate_cells
    from semblend.quality.suite import Records, run_cells

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = load_model(options.model, device=options.device, dtype=options.dtype)
    lab = Lab(model, capacity_tokens=options.capacity)
    started = time.perf_counter()

    def progress(workload: str, done: int, total: int) -> None:
        if done == total:
            print(options.shard, workload, f"{time.perf_counter() - started:.0f} s", flush=True)

    measure_curves(lab, options)
    cells = certificate_cells(options.items, data=options.data)
    if options.workloads:
        by_name = {cell.workload: cell for cell in cells}
        cells = [by_name[name] for name in options.workloads.split(",")]
    records = Records(options.output / f"records-{options.shard}.jsonl")
    if options.known is not None:
        records.leave_out(json.loads(options.known.read_text(encoding="utf-8")))
    run_cells(
        lab,
        [
            replace(cell, specs=tuple(spec for spec in cell.specs if options.only in spec))
            for cell in cells
        ],
        records,
        seed=options.seed,
        shard=(options.shard, options.shards),
        progress=progress,
    )
    lab.close()


def measure_curves(lab: Lab, options: argparse.Namespace) -> None:
    """Deviation by layer and by distance, for the first items of a few workloads."""
    from semblend.quality.certifying import CANDIDATES, CURVED
    from semblend.quality.curves import curves
    from semblend.quality.suite import Cell

    path = options.output / f"curves-{options.shard}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for name in CURVED:
            cell = Cell(workload=name, items=options.curves, specs=())
            for case in cell.cases(options.seed):
                if case.number % options.shards == options.shard:
                    item = to_item(case, lab.model.tokenizer)
                    for curve in curves(lab, item, ["none", CANDIDATES[0]]):
                        file.write(json.dumps(curve.to_dict()) + "\n")


if __name__ == "__main__":
    main()
