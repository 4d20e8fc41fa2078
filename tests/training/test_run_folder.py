"""The names of a run's files, which commands that only measure read without loading torch."""

import subprocess
import sys


def test_reading_the_names_of_a_runs_files_loads_neither_torch_nor_a_recipe():
    script = (
        "import sys; from isomargin.training.run_folder import RunFolder, write_metrics;"
        "print([name for name in ('torch', 'pydantic', 'yaml', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
