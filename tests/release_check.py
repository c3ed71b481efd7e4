"""`make release-check`: is what would be uploaded what a stranger can install, import and use?

Builds wheel and sdist, has twine look at both, installs the wheel in an environment of its own with nothing but what it
asks for, and runs the README's code and commands there. The first failure ends it with a sentence.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST_WHEEL = 8_000_000
EXTRAS = "cli,export"
"""What the README's commands need."""

BARE = """
import sys, time
import torch
start = time.perf_counter()
import lightfast as lf
seconds = time.perf_counter() - start
assert seconds < 0.3, f"import lightfast takes {seconds:.2f} s beyond torch's own"
missing = [name for name in ("PIL", "typer", "rich", "matplotlib", "onnx") if name in sys.modules]
assert not missing, f"import lightfast imports {missing}"
scores = lf.pretrained("resnet20-cifar10")(torch.rand(1, 3, 32, 32))
light = lf.pretrained("illuminant")(torch.rand(1, 3, 64, 64))
assert scores.shape == (1, 10) and light.shape == (1, 3)
print(f"import lightfast takes {seconds:.2f} s beyond torch's own; packaged models answer")
"""


def main() -> None:
    """Check it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip is asked for as torch")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    wheel, sdist = build(given.out)
    look_at(wheel, sdist)
    with tempfile.TemporaryDirectory() as folder:
        use(Path(folder), wheel, given.torch)
    print(
        f"ready: {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB), {sdist.name} ({sdist.stat().st_size / 1e6:.1f} MB)"
    )


def run(*command: object, cwd: Path | None = None, code: int = 0) -> str:
    """What a command says, of which it is known how it ends."""
    print("$", shlex.join(map(str, command)), flush=True)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd)
    if done.returncode != code:
        sys.exit(f"it ended with {done.returncode} instead of {code}:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def build(out: Path) -> tuple[Path, Path]:
    """Wheel and sdist, the latter by the former's own recipe."""
    for old in out.glob("lightfast-*") if out.exists() else ():
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def look_at(wheel: Path, sdist: Path) -> None:
    """Metadata, sizes, and what is inside."""
    print(run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist).strip())
    if wheel.stat().st_size > LARGEST_WHEEL:
        sys.exit(f"{wheel.name} has {wheel.stat().st_size:,} bytes, of {LARGEST_WHEEL:,} at most: see make weights")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    if wrong := [name for name in names if name.startswith(("results/", ".venv/", "dist/"))]:
        sys.exit(f"{sdist.name} holds {wrong[0]} and {len(wrong) - 1} more that nobody needs")
    for needed in ("src/lightfast/py.typed", "tests/test_api.py", "CITATION.cff", "LICENSE"):
        if needed not in names:
            sys.exit(f"{sdist.name} lacks {needed}")


def use(folder: Path, wheel: Path, torch: str) -> None:
    """The wheel alone, then with the extras that the README's commands need."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", torch)
    installed = run(python, "-c", "from importlib.metadata import version; print(version('torch'))").strip()
    (folder / "constraints.txt").write_text(f"torch=={installed}\n")
    install = (python, "-m", "pip", "install", "--quiet", "-c", folder / "constraints.txt")
    run(*install, wheel)
    print(run(python, "-c", BARE, cwd=folder).strip())
    said = run(folder / "venv" / "bin" / "lightfast", "--help", code=1)
    if "pip install lightfast[cli]" not in said:
        sys.exit(f"without typer, the command says {said!r}")
    run(*install, f"{wheel}[{EXTRAS}]")
    script, commands = readme(folder)
    run(python, script, cwd=folder)
    for command in commands:
        run(folder / "venv" / "bin" / command[0], *command[1:], cwd=folder)


def readme(folder: Path) -> tuple[Path, list[list[str]]]:
    """The README's Python as one script, and its commands of `lightfast`, with photographs where they name some."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.S | re.M))
    script = folder / "readme.py"
    script.write_text(code, encoding="utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("lightfast ")]
    # Trainings take hours, need data, and are tested elsewhere.
    short = [command for command in commands if command[1] not in ("train", "reproduce", "evaluate", "bench", "zoo")]
    return script, [[draw(folder, word) for word in command if not word.endswith(".nef")] for command in short]


def draw(folder: Path, word: str) -> str:
    """A word of a command; the photograph or the folder of photographs that it names is made."""
    import numpy as np
    from PIL import Image

    path = folder / word
    if re.fullmatch(r"[\w-]+\.(jpe?g|png|tiff?|webp)", word) and not path.exists():
        path = folder / word
    elif re.fullmatch(r"[A-Z]+/?", word):
        path.mkdir(exist_ok=True)
        path = path / "photo.jpg"
    else:
        return word
    rows, columns = np.mgrid[0:240, 0:320]
    pixels = np.stack([rows, columns * 0.7, (rows + columns) * 0.3], 2).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return word


if __name__ == "__main__":
    main()
