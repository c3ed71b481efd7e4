"""How long photographs take: until a command begins, and for 24 megapixels beyond decoding and encoding.

    OMP_NUM_THREADS=1 python benchmarks/photographs.py results/photographs-speed

Seconds of one core, the least of several times, since other things on the machine only add to them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lightfast._atomic import write_json
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from lightfast._photographs.balance import choose_estimator
from lightfast._photographs.files import read_photo, write_photo
from lightfast._photographs.folder import balance_file

TIMES = 5


def command(*arguments: str) -> float:
    """Seconds of processor time of `lightfast ...`, in a process of its own."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    subprocess.run([sys.executable, "-m", "lightfast.cli", *arguments], check=True, stdout=subprocess.DEVNULL)
    return spent() - before


def timed(work: Callable[[], object]) -> float:
    """Seconds of processor time in this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Measure, and write results.json and table.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        small, large, out = Path(folder, "small.jpg"), Path(folder, "large.jpg"), Path(folder, "out")
        picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8))
        picture.resize((600, 400), Image.Resampling.BICUBIC).save(small, quality=90)
        picture.resize((6000, 4000), Image.Resampling.BICUBIC).save(large, quality=90)
        estimate = choose_estimator("illuminant")
        ways: dict[str, Callable[[], float]] = {
            "`lightfast --help`": lambda: command("--help"),
            "`lightfast balance` of a small picture": lambda: command(
                *("balance", str(small), "-o", str(out), "--overwrite", "--no-sheet")
            ),
            "24 megapixels, decoded and encoded": lambda: timed(lambda: write_photo(read_photo(large), out / "a.jpg")),
            "24 megapixels, balanced with the prior": lambda: timed(lambda: balance_file(large, out / "b", estimate)),
            "24 megapixels, balanced without prior": lambda: timed(
                lambda: balance_file(large, out / "b", estimate, prior="none")
            ),
        }
        seconds = {name: [way() for _ in range(TIMES)] for name, way in ways.items()}
    least = {name: min(each) for name, each in seconds.items()}
    given.out.mkdir(parents=True, exist_ok=True)
    write_json(given.out / "results.json", {"seconds": seconds, "provenance": provenance()})
    rows = [["What", "seconds"], *([name, f"{value:.2f}"] for name, value in least.items())]
    text = (
        f"Seconds of one core, the least of {TIMES} times. `benchmarks/photographs.py` says how.\n\n{markdown(rows)}\n"
    )
    (given.out / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
