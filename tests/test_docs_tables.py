"""Numbers in README and docs are those in results/."""

import subprocess
import sys


def test_tables_are_up_to_date(repository):
    command = [sys.executable, str(repository / "docs" / "render.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
