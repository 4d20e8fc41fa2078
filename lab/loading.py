"""Open what is known of a run: from its folder, or from what the results keep of it where the folder is missing.

Where an experiment keeps evaluations, they are what is compared, whether the folders are there or not, so that results
do not depend on it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from isomargin.measure.evaluation import Evaluation
from isomargin.training.run_folder import RunFolder
from lab.choices import is_local
from lab.derived import equalized
from lab.kept import FOLDER, Measured, compact, load_kept, measured, read_settings, save_kept
from lab.plan import PlannedRun
from lab.training_runs import json_settings, seconds_of

SUFFIX = ".npz.xz"
IN_MEMORY = 12  # evaluations; those of a benchmark take 50 MB each


class Loader:
    """Opens runs, and keeps their evaluations in the folder of the results if asked to."""

    def __init__(self, folder: Path, place: Path, keep: bool) -> None:
        self.folder, self.place, self.keep = folder, place, keep
        self.loaded: OrderedDict[tuple[Path, bool], Measured] = OrderedDict()

    def kept_file(self, run: PlannedRun) -> Path:
        """Give the file that keeps the evaluation of a run."""
        return self.place / FOLDER / run.setting / f"{run.variant.replace(' + ', '+')}-seed-{run.seed}{SUFFIX}"

    def is_kept(self, run: PlannedRun) -> bool:
        """Tell whether the results keep the evaluation of a run with this recipe."""
        path = self.kept_file(run)
        return self.keep and path.is_file() and read_settings(path) == json_settings(run.recipe)

    def is_there(self, run: PlannedRun) -> bool:
        """Tell whether a run can be opened."""
        return RunFolder(self.folder / run.folder).finished or self.is_kept(run)

    def load(self, run: PlannedRun) -> Measured:
        """Open a run that has scores."""
        key = (run.folder, is_local(run.choices))
        if key not in self.loaded:
            self.loaded[key] = replace(self.open(run), name=f"{run.setting}/{run.variant}/{run.seed}")
            if len(self.loaded) > IN_MEMORY:
                self.loaded.popitem(last=False)
        self.loaded.move_to_end(key)
        return self.loaded[key]

    def open(self, run: PlannedRun) -> Measured:
        """Open a run from what is kept of it, or from its folder; then keep it, if asked to."""
        path = self.kept_file(run)
        if self.is_kept(run):
            return load_kept(path)
        place = RunFolder(self.folder / run.folder)
        found = equalized(run, self.folder) if is_local(run.choices) else Evaluation.load(place.evaluation)
        if not self.keep:
            return measured(found)
        small = replace(compact(measured(found)), seconds=seconds_of(place))
        save_kept(small, json_settings(run.recipe), path)
        return load_kept(path)
