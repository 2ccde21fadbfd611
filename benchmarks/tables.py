"""How long a table takes to become federated data, and how much memory: ``python -m benchmarks.tables``.

Each measurement is a process of its own. Its peak is the largest resident size that the system saw (VmHWM), which
counts the pages of mapped files too; ``anonymous`` is the largest part that is no file, sampled every 10 ms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

FEATURES = 20


def write_parquet(path: Path, rows: int, clients: int) -> None:
    """A table of random numbers with one category, row groups of 131,072, clients in random order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    wards, writer = np.array(["a", "b", "c", "d"]), None
    for first in range(0, rows, 131_072):
        size = min(131_072, rows - first)
        columns = {f"x{k}": rng.normal(size=size) for k in range(FEATURES)}
        columns |= {"site": rng.integers(clients, size=size), "ward": wards[rng.integers(4, size=size)]}
        columns["y"] = np.array(["no", "yes"])[(columns["x0"] > 0).astype(int)]
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=["ward", "y"])
        writer.write_table(table)
    assert writer is not None
    writer.close()


def read_status(key: str) -> int:
    """A size of this process in bytes, as the system has it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def watch_anonymous(peak: list[int]) -> None:
    """Keep the largest resident size without files in ``peak``."""
    while True:
        peak[0] = max(peak[0], read_status("RssAnon"))
        time.sleep(0.01)


def measure(path: str, on_disk: bool) -> dict[str, float]:
    """Load one table, standardised, in this process."""
    import moiety as mo

    _ = mo.data.from_frame  # so that imports are not measured
    peak = [0]
    threading.Thread(target=watch_anonymous, args=(peak,), daemon=True).start()
    before = read_status("VmHWM")
    began = time.perf_counter()
    fed = mo.data.from_frame(path, client="site", target="y", standardise=True, on_disk=on_disk)
    seconds = time.perf_counter() - began
    after = read_status("VmHWM")
    shape = {"rows": fed.total, "clients": len(fed)}
    return {"seconds": seconds, "before": before, "peak": after, "anonymous": peak[0], **shape}


def main() -> None:
    """Make the tables and measure each in a new process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--measure", nargs=2, metavar=("PATH", "ON_DISK"))
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], options.measure[1] == "yes")))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write_parquet(path, options.rows, options.clients)
        print(f"{path.stat().st_size / 1e6:.0f} MB of Parquet")
        for on_disk in ("no", "yes"):
            command = [sys.executable, "-m", "benchmarks.tables", "--measure", str(path), on_disk]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            sizes = {key: f"{row[key] / 1e6:.0f} MB" for key in ("before", "peak", "anonymous")}
            print(f"on_disk={on_disk}: {row['seconds']:.1f} s, {sizes}, {row['rows']} rows, {row['clients']} clients")


if __name__ == "__main__":
    main()
