"""Scores of resampled classes for galleries: enrolled classes with their probes, and unknown classes.

A draw gives each enrolled class a weight, which is that of its template and of its known probes, and each unknown class
a weight of its own. Columns of the weights are enrolled classes, then unknown classes.

- **Pooled FAR.** A negative comparison belongs to a template and to a probe. To first order, the pooled FAR of a draw
  deviates by the sum of the two deviations: of the mean over templates, and of the mean over probes. What is particular
  to a pair of classes is in the deviations of both, so they are reduced (`gallery_noise.class_share`).
- **FPIR and FNIR** are rates of probes, so the probes' weights apply. The templates matter too: an unknown probe is
  accepted only because of its first class if that is the only accepted one. Leaving that class out would remove the
  false positive; this jackknife influence of each template enters a draw in proportion to its weight minus one, less
  the part that is particular to pairs of a template and a probe's class, which the probes' weights contain already.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats
from isomargin.measure.scores.curves import share
from isomargin.measure.statistics.resampling import (
    FINE,
    MARGIN,
    Grid,
    Resampler,
    Weights,
    crossings,
    draw_weights,
    in_parts,
    leave_out_weights,
)

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.identification import Identification

OTHER_STREAM = 1 << 32  # unknown classes are drawn with other random numbers than enrolled ones


def make_resampler(evaluation: "Evaluation") -> Resampler:
    """Return what resamples the classes of an evaluation."""
    return Resampler(evaluation) if evaluation.identification is None else GalleryResampler(evaluation)


class Decisions(NamedTuple):
    """Numbers of probes with a decision at each of (m,) values of the threshold, or of the negated margin."""

    accepted: Floats
    """(unknown classes, m) unknown probes for which a class is accepted."""
    missed: Floats
    """(classes, m) known probes that are not identified."""
    wrong: Floats
    """(classes, m) known probes that are misidentified."""
    accepted_by: Floats
    """(classes, m) unknown probes that are accepted only because of this class's template."""
    missed_by: Floats
    """(classes, m) known probes that are not identified only because of this class's template."""
    wrong_by: Floats
    """(classes, m) known probes that are misidentified only because of this class's template."""
    template_factors: Floats
    """(3,) by which deviations of templates are reduced, for FPIR, FNIR and misidentification."""


@dataclass(frozen=True)
class GalleryResampler(Resampler):
    """Computes the scores of a gallery for resampled classes."""

    @property
    def gallery(self) -> "Identification":
        """The probes' best classes."""
        return self.evaluation.gallery

    # ----- weights

    def draw(self, draws: int, seed: int) -> Weights:
        """(draws, classes + unknown classes) weights; enrolled and unknown classes are resampled separately."""
        enrolled, unknown = super().draw(draws, seed), len(self.gallery.unknown_names)
        if not unknown:
            return enrolled
        return np.hstack([enrolled, draw_weights(np.ones(unknown, bool), draws, seed + OTHER_STREAM)])

    def leave_out(self) -> Weights:
        """(groups, classes + unknown classes) weights that leave out one class, or one group, at a time."""
        return leave_out_weights(self.evaluation.class_count + len(self.gallery.unknown_names))

    def undrawn(self) -> Weights:
        """(1, classes + unknown classes) weights that take every class once."""
        return np.ones((1, self.evaluation.class_count + len(self.gallery.unknown_names)), np.uint16)

    def of_classes(self, weights: Floats) -> Floats:
        """(draws, classes) the weights of the enrolled classes."""
        return weights[:, : self.evaluation.class_count]

    # ----- rates of comparisons

    @cached_property
    def classes_per_negative(self) -> float:
        """Number of resampled classes to which a comparison belongs: that of the template, and that of the probe."""
        return 2.0

    def pooled_far(self, within: Floats, distances: Floats, weights: Floats) -> Floats:
        """(draws, m) pooled FAR of each draw, from (classes, m) counts of negative comparisons within distances."""
        gallery, totals = self.gallery, self.evaluation.counts.negatives.totals
        enrolled, by_probe = self.of_classes(weights), self.of_probes(distances.tobytes())
        whole = within.sum(axis=0) / totals.sum()
        of_templates = share(enrolled @ within, (enrolled @ totals)[:, None]) - whole
        # The probes' classes are counted in other bins: their deviations are taken from their own mean.
        of_probes = share(weights @ by_probe, (weights @ gallery.by_probe.totals)[:, None])
        of_probes -= by_probe.sum(axis=0) / gallery.by_probe.totals.sum()
        factor = np.sqrt(np.interp(distances, gallery.levels, gallery.class_share))
        return np.asarray(np.clip(whole + factor * (of_templates + of_probes), 0.0, 1.0))

    def of_probes(self, distances: bytes) -> Floats:
        """(probe classes, m) negative comparisons within (m,) distances, given as bytes, by the class of the probe."""
        known = self.counted_by_probe
        if distances not in known:
            known[distances] = self.gallery.by_probe.within(np.frombuffer(distances))
        return known[distances]

    @cached_property
    def counted_by_probe(self) -> dict[bytes, Floats]:
        """What `of_probes` has counted."""
        return {}

    # ----- identification

    def scores(self, weights: Weights) -> dict[str, Floats]:
        """(draws,) by name: every score in each draw."""
        found = super().scores(weights)
        if self.evaluation.fpir_target is None:
            return found
        parts = [self.identification(part) for part in in_parts(weights)]
        return found | {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def identification(self, weights: Floats) -> dict[str, Floats]:
        """(draws,) by name: the rates of identification."""
        point = self.evaluation.fpir_target
        assert point is not None
        values, decisions = self.around_threshold
        fpir, fnir, wrong = self.rates_of(decisions, weights)
        own = Grid.at_points(values, crossings(np.maximum.accumulate(fpir, axis=1), point.fpir, values))
        given = Grid.at_points(values, np.full(len(weights), point.distance))
        margins, by_margin = self.around_margin
        margin_fpir, margin_fnir, _ = self.rates_of(by_margin, weights)
        assert self.evaluation.fpir_margin_target is not None
        reached = crossings(margin_fpir, self.evaluation.fpir_margin_target.fpir, margins)
        return {
            "fpir": given.at(fpir)[:, 0],
            "fnir": own.at(fnir)[:, 0],
            "misidentified": own.at(wrong)[:, 0],
            "margin_fnir": Grid.at_points(margins, reached).at(margin_fnir)[:, 0],
        }

    def identification_at(self, distance: float, weights: Weights) -> tuple[Floats, Floats]:
        """(draws,) FPIR and (draws,) FNIR at one threshold, with the margin of the evaluation."""
        decisions = self.by_threshold(np.array([distance]))
        parts = [self.rates_of(decisions, part) for part in in_parts(weights)]
        return np.concatenate([part[0][:, 0] for part in parts]), np.concatenate([part[1][:, 0] for part in parts])

    def rates_of(self, decisions: Decisions, weights: Floats) -> tuple[Floats, Floats, Floats]:
        """(draws, m) FPIR, FNIR and share of misidentified probes of each draw."""
        gallery, classes = self.gallery, self.evaluation.class_count
        enrolled, unknown = self.of_classes(weights), weights[:, classes:]
        known_sizes = self.evaluation.sizes
        unknown_sizes = np.bincount(gallery.unknown_class, minlength=len(gallery.unknown_names))
        changed = enrolled - 1.0  # by how much each template's weight differs from once
        parts = (
            (unknown, unknown_sizes, decisions.accepted, decisions.accepted_by),
            (enrolled, known_sizes, decisions.missed, decisions.missed_by),
            (enrolled, known_sizes, decisions.wrong, decisions.wrong_by),
        )
        fpir, fnir, wrong = (
            np.clip(share(probes @ own + factor * (changed @ by), (probes @ sizes)[:, None]), 0.0, 1.0)
            for (probes, sizes, own, by), factor in zip(parts, decisions.template_factors, strict=True)
        )
        return fpir, fnir, wrong

    @cached_property
    def around_threshold(self) -> tuple[Floats, Decisions]:
        """(fine,) thresholds around that for the target FPIR, and the decisions at each."""
        point = self.evaluation.fpir_target
        assert point is not None
        distances = np.sort(self.gallery.first_distance[self.gallery.known :])
        values = around(distances, point.fpir, point.distance)
        return values, self.by_threshold(values)

    @cached_property
    def around_margin(self) -> tuple[Floats, Decisions]:
        """(fine,) negated margins around that for the target FPIR, and the decisions of the margin rule at each."""
        point, gallery = self.evaluation.fpir_margin_target, self.gallery
        assert point is not None
        negated = -gallery.gaps
        values = around(np.sort(negated[gallery.known :]), point.fpir, -point.margin)
        own_class, classes = gallery.probe_class[: gallery.known], self.evaluation.class_count
        never = np.full(gallery.known, np.inf)
        found = np.where(gallery.comes_first, negated[: gallery.known], never)
        wrong = np.where(gallery.comes_first, never, negated[: gallery.known])
        nothing = np.zeros((classes, len(values)))
        return values, Decisions(
            reached(negated[gallery.known :], gallery.unknown_class, len(gallery.unknown_names), values),
            self.evaluation.sizes[:, None] - reached(found, own_class, classes, values),
            reached(wrong, own_class, classes, values),
            nothing,
            nothing,
            nothing,
            np.ones(3),
        )

    def by_threshold(self, values: Floats) -> Decisions:
        """Count the decisions at (m,) thresholds, with the margin of the evaluation."""
        gallery, classes = self.gallery, self.evaluation.class_count
        known = gallery.known
        clear = gallery.gaps >= gallery.margin if gallery.margin > 0 else np.ones(len(gallery.gaps), bool)
        first, second = (
            np.where(clear, distances, np.inf) for distances in (gallery.first_distance, gallery.second_distance)
        )
        own, own_class = np.where(clear[:known], gallery.own_distance, np.inf), gallery.probe_class[:known]
        behind = ~gallery.comes_first
        by_class = gallery.first_class
        only_first = behind & (gallery.second_distance[:known] >= gallery.own_distance)  # one class is nearer
        wrong = np.where(behind, first[:known], np.inf)
        until = np.where(only_first, np.inf, second[:known])  # from here on another class would be accepted instead
        middle = float(np.median(values))
        events = (
            (first[known:] <= middle) & (second[known:] > middle),
            only_first & (own <= middle),
            behind & (first[:known] <= middle) & (until > middle),
        )
        probes = slice(known, None), slice(0, known), slice(0, known)
        return Decisions(
            accepted=reached(first[known:], gallery.unknown_class, len(gallery.unknown_names), values),
            missed=self.evaluation.sizes[:, None] - reached(np.where(behind, np.inf, own), own_class, classes, values),
            wrong=reached(wrong, own_class, classes, values),
            accepted_by=reached(first[known:], by_class[known:], classes, values)
            - reached(second[known:], by_class[known:], classes, values),
            missed_by=reached(np.where(only_first, own, np.inf), by_class[:known], classes, values),
            wrong_by=reached(wrong, by_class[:known], classes, values)
            - reached(np.where(behind, np.maximum(until, wrong), np.inf), by_class[:known], classes, values),
            template_factors=np.array([
                template_factor(event, by_class[part], gallery.probe_class[part], classes)
                for event, part in zip(events, probes, strict=True)
            ]),
        )  # fmt: skip


def template_factor(
    event: NDArray[np.bool_], template: NDArray[np.int64], probe_class: NDArray[np.int64], classes: int
) -> float:
    """Return by how much deviations of templates are reduced: the root of the part that is not particular to pairs.

    Args:
        event: (probes,) whether it occurs, because of one template.
        template: (probes,) the class of that template.
        probe_class: (probes,) the class of the probe.
        classes: number of enrolled classes.

    >>> template_factor(np.ones(4, bool), np.array([0, 0, 0, 0]), np.array([1, 2, 3, 4]), 2)
    0.7071067811865476
    """
    caused = np.bincount(template[event], minlength=classes)
    of_templates = float(np.square(caused - caused.mean()).sum())
    _, number = np.unique(np.stack([template[event], probe_class[event]]), axis=1, return_counts=True)
    return float(np.sqrt(max(0.0, 1 - np.square(number).sum() / of_templates))) if of_templates > 0 else 0.0


def around(ascending: Floats, rate: float, value: float) -> Floats:
    """(fine,) values around one at which a share ``rate`` of ascending ones is reached."""
    places = (min(max(int(rate * factor * len(ascending)), 0), len(ascending) - 1) for factor in (1 / MARGIN, MARGIN))
    low, high = (float(ascending[place]) for place in places)
    return np.linspace(min(low, value), max(high, value), FINE)


def reached(values: Floats, class_of: NDArray[np.int64], classes: int, levels: Floats) -> Floats:
    """(classes, m) how many values of each class are at most each of (m,) ascending levels.

    >>> reached(np.array([0.1, 0.5, np.inf]), np.array([0, 1, 1]), 2, np.array([0.2, 0.6]))
    array([[1., 1.],
           [0., 1.]])
    """
    place = np.searchsorted(levels, values, side="left")
    cells = np.bincount(class_of * (len(levels) + 1) + place, minlength=classes * (len(levels) + 1))
    return np.cumsum(cells.reshape(classes, len(levels) + 1)[:, :-1], axis=1, dtype=np.float64)
