"""What is added to the similarities of probes and templates: an equalizer's shifts, the offsets of class thresholds."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import digest
from isomargin.measure.evaluate import EqualizesSimilarity
from isomargin.measure.pairs.axis import AxisName, ScoreAxis, similarity_of
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.gallery_inputs import GalleryData, Template

Sides = Literal["both", "template", "probe"]
OTHER_ITEMS = (
    "the enrolled items are not those that the class thresholds were fitted on: fit them again with "
    "`isomargin class-thresholds` on this gallery"
)


class HasClassOffsets(Protocol):
    """What an evaluation needs of class thresholds; `isomargin.ClassThresholds` has it."""

    def offsets_for(self, names: Any, template: Template, dimensions: int) -> Floats:
        """(classes,) what is subtracted from the similarities to each class of a gallery; others are refused.

        ``names`` are the labels of the classes, each once.
        """

    def were_fitted_on(self, rows: NDArray[Any], labels: Any) -> bool:
        """Return whether these (m, d) templates with their m labels are those of the fit."""

    def record(self) -> dict[str, Any]:
        """Return settings and digest as JSON values."""


@dataclass(frozen=True)
class GalleryShifts:
    """An equalizer and class thresholds, either or both of which may be missing."""

    equalizer: EqualizesSimilarity | None = None
    """Fitted on templates, or on items for ``max`` and ``each``."""
    sides: Sides = "both"
    """Whether the equalizer shifts probes, templates or both."""
    class_thresholds: HasClassOffsets | None = None
    """Fitted on the gallery."""

    def check(self) -> None:
        """Refuse sides that do not exist, or that are chosen without an equalizer."""
        if self.equalizer is None and self.sides != "both":
            raise InputError(
                f"sides is {self.sides!r}, but there is no equalizer whose shifts it could choose: give one"
            )
        checks.one_of(self.sides, "sides", get_args(Sides))

    def apply(
        self, data: GalleryData, gallery: Any, probes: Any, gallery_ids: Any = None, probe_ids: Any = None
    ) -> GalleryData:
        """Add the shifts to the similarities of probes and templates, and what there is to say to the data's notes."""
        if self.equalizer is not None:
            data = self._equalize(self.equalizer, data, gallery, probes, gallery_ids, probe_ids)
        return data if self.class_thresholds is None else subtract_offsets(data, self.class_thresholds)

    def _equalize(
        self,
        equalizer: EqualizesSimilarity,
        data: GalleryData,
        gallery: Any,
        probes: Any,
        gallery_ids: Any,
        probe_ids: Any,
    ) -> GalleryData:
        """Add an equalizer's shifts; that probes are not in its reference is as it should be and needs no note."""
        row_values, probe_values = np.zeros(len(data.rows)), np.zeros(len(data.probes))
        notes: list[str] = []
        if self.sides != "probe":
            found = equalizer.shifts(data.rows if data.template == "mean" else gallery, gallery_ids)
            row_values = found.values if data.template == "mean" else found.values[data.item_order]
            notes += [f"gallery: {note}" for note in found.notes]
        if self.sides != "template":
            own_ids = gallery_ids if data.own_row is not None and data.template != "mean" else probe_ids
            found = equalizer.shifts(probes, own_ids)
            probe_values = found.values[data.probe_order]
            notes += [f"probes: {note}" for note in found.notes if found.own_class != "outside"]
        return replace(data.with_shifts(probe_values, row_values, found.axis), notes=(*data.notes, *notes))

    def record(self) -> dict[str, Any] | None:
        """Return the settings of what shifts the similarities, and one digest that names all of it; None if nothing."""
        equalized = None if self.equalizer is None else {**self.equalizer.record(), "sides": self.sides}
        if self.class_thresholds is None:
            return equalized
        record = self.class_thresholds.record()
        if equalized is None:
            return {"class_thresholds": record, "sides": "template", "digest": record["digest"]}
        both = digest({"equalizer": equalized["digest"], "class_thresholds": record["digest"]})
        return {**equalized, "class_thresholds": record, "digest": both}


def subtract_offsets(data: GalleryData, class_thresholds: HasClassOffsets) -> GalleryData:
    """Subtract the offset of each class from the similarities to it, beside the shifts that there are."""
    offsets = class_thresholds.offsets_for(data.names, data.template, data.rows.shape[1])
    lowest, highest = similarity_of(data.axis.highest), similarity_of(data.axis.lowest)
    name: AxisName = "equalized_distance" if data.axis.name == "equalized_distance" else "offset_distance"
    axis = ScoreAxis.equalized(lowest - offsets.max(), highest - offsets.min(), name)
    rows = np.zeros(len(data.rows)) if data.row_shifts is None else data.row_shifts
    probes = np.zeros(len(data.probes)) if data.probe_shifts is None else data.probe_shifts
    same = class_thresholds.were_fitted_on(data.rows, data.names[data.row_class])
    notes = data.notes if same else (*data.notes, OTHER_ITEMS)
    return replace(data.with_shifts(probes, rows - offsets[data.row_class], axis), notes=notes)
