"""``evaluate_gallery``: measure a system that compares probes with the templates of enrolled classes.

The result is an `Evaluation` whose pairs are comparisons of a probe with a template. Beside the scores of pairs it has
those of identification (1:N, with unknown probes).
"""

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.progress import progress_bar
from isomargin.measure.evaluate import EqualizesSimilarity
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.gallery_shifts import GalleryShifts, HasClassOffsets, Sides
from isomargin.measure.identification import Identification, check_margin
from isomargin.measure.pairs.counts import RankCounts
from isomargin.measure.pairs.gallery_inputs import GalleryData, Template, read_gallery
from isomargin.measure.pairs.gallery_pass import LISTED, GalleryPass, compare_exactly
from isomargin.measure.pairs.gallery_tiles import compare_in_tiles
from isomargin.measure.pairs.inputs import OTHER_LENGTHS
from isomargin.measure.pairs.rates import pairs_at_far
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.settings import EpsilonForm, MeanCurve, Settings, Utility
from isomargin.measure.statistics.gallery_noise import class_share, probe_noise
from isomargin.measure.statistics.item_noise import choose_levels


def evaluate_gallery(
    gallery: Any,
    gallery_labels: Any,
    probes: Any = None,
    probe_labels: Any = None,
    *,
    template: Template = "mean",
    leave_one_out: bool = False,
    equalizer: EqualizesSimilarity | None = None,
    sides: Sides = "both",
    class_thresholds: HasClassOffsets | None = None,
    margin: float = 0.0,
    gallery_ids: Any = None,
    probe_ids: Any = None,
    far: tuple[float, float] = (1e-2, 1e-1),
    frr: float | None = None,
    distances: tuple[float, float] | None = None,
    grid: int = 101,
    epsilon: float = 0.1,
    c: float = 1.0,
    utility: Utility = "specificity_sensitivity",
    mean_curve: MeanCurve = "classes",
    epsilon_form: EpsilonForm = "f_score",
    target_far: float = 1e-2,
    target_frr: float = 5e-2,
    target_fpir: float = 5e-2,
    k: Iterable[int] = (1, 5, 10),
    threads: int | None = None,
    progress: Callable[[float], None] | Literal["auto"] | None = "auto",
) -> Evaluation:
    r"""Measure probes against a gallery of enrolled classes: per class, as verification, and as identification.

    A probe is compared with each enrolled class. A comparison is accepted if its distance is at most the threshold.
    For each enrolled class, a positive comparison is one of its known probes with its own template, and a negative
    comparison is any other probe, known or unknown, with that template. FAR, FRR, utility, OPIS and the other scores of
    `isomargin.evaluate` follow from these comparisons; curves are those of classes with at least two known probes. What
    identification adds (FPIR, FNIR, misidentified probes) is in `Evaluation.identification`, `Evaluation.at_fpir` and
    the scores ``fnir``, ``misidentified`` and ``margin_fnir``; recall@k is the share of known probes whose own class
    is among the first k, without a threshold.

    **Accuracy and cost.** Up to 2²³ comparisons are made in float64 and listed. More are made in one pass over a
    float32 product and counted in bins, as by `isomargin.evaluate`, in less than 1.5 times the time of the product.

    Args:
        gallery: (m, d) embeddings of the enrolled items, as `isomargin.evaluate` takes them.
        gallery_labels: m labels; items with the same label are enrolled for the same class.
        probes: (n, d) embeddings of the probes; none if one is left out.
        probe_labels: n labels. A probe whose label is not in the gallery is unknown.
        template: what a probe is compared with: ``"mean"``, the mean of the class's unit vectors, scaled to length one;
            ``"max"``, the best of the class's items; ``"each"``, every item by itself (the comparisons of a class are
            then those with each of its items, and ranks are those of items).
        leave_one_out: take the enrolled items as probes, each compared with its own class without itself. An item that
            is alone in its class is no probe, known or unknown.
        equalizer: a fitted `isomargin.Equalizer`, to measure equalized similarities. An equalizer of mean templates is
            fitted on the templates (`isomargin.make_templates`); an item left out keeps the shift of its class's whole
            template.
        sides: where an equalizer's shifts are added: to probes and templates (``"both"``, for verification), to
            templates alone (``"template"``, for identification), or to probes alone (``"probe"``, for identification
            beside class thresholds, which correct the templates).
        class_thresholds: a fitted `isomargin.ClassThresholds` of the same classes and kind of templates, to measure
            similarities minus the offset of the class; one threshold then stands for one per class. Beside an
            equalizer both are applied. An item left out keeps the offset of its whole class.
        margin: a second rule for identification: the similarity of the first class must exceed that of the second by
            this much.
        gallery_ids: m names of the enrolled items, by which the equalizer recognises rows of its reference; for mean
            templates, one name per class in sorted order.
        probe_ids: n names of the probes.
        far: the calibration range, given as the pooled false accept rates at its two ends.
        frr: if given, the calibration range starts where the pooled false reject rate falls to this value instead.
        distances: the calibration range as two distances; replaces ``far`` and ``frr``.
        grid: number of evenly spaced distances in the calibration range.
        epsilon: share of the classes in the best group, and in the worst group, of epsilon-OPIS.
        c: weight of sensitivity in the utility.
        utility: the two rates to combine.
        mean_curve: the curve from which OPIS measures deviations.
        epsilon_form: utility of the groups in epsilon-OPIS.
        target_far: false accept rate of the single threshold whose effect on each class is reported.
        target_frr: false reject rate for which each class's own threshold is found.
        target_fpir: false positive identification rate at which the scores of identification are reported.
        k: values of k for recall@k.
        threads: number of CPU threads; by default one per core.
        progress: as in `isomargin.evaluate`.

    Returns:
        An `Evaluation` with ``comparison="gallery"``. ``names`` are the enrolled classes and ``sizes`` their known
        probes.

    Raises:
        InputError: if the gallery, the probes or the settings cannot be evaluated; the message says how to fix it.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(30), 20)
    >>> items = generator.normal(size=(30, 16))[labels] + generator.normal(size=(600, 16))
    >>> enrolled = (labels < 20) & (np.arange(600) % 4 == 0)  # five items of 20 classes; ten classes are unknown
    >>> evaluation = im.evaluate_gallery(items[enrolled], labels[enrolled], items[~enrolled], labels[~enrolled])
    >>> point = evaluation.at_fpir(0.05)
    >>> round(point.fpir, 2), round(point.fnir, 2), round(point.misidentified, 2)
    (0.05, 0.4, 0.01)
    """
    settings = Settings.from_values(
        far=far,
        frr=frr,
        distances=distances,
        grid=grid,
        epsilon=epsilon,
        c=c,
        utility=utility,
        mean_curve=mean_curve,
        epsilon_form=epsilon_form,
        target_far=target_far,
        target_frr=target_frr,
        target_fpir=target_fpir,
        k=k,
        map_at_r=False,
    )
    check_margin(margin)
    shifts = GalleryShifts(equalizer, sides, class_thresholds)
    shifts.check()
    if threads is not None:
        checks.whole(threads, "threads")
    check_probes(probes, probe_labels, leave_one_out)
    sets = (gallery, gallery_labels, probes, probe_labels)
    data = read_gallery(*sets, template, leave_one_out)
    exactly = data.comparisons <= LISTED and len(data.probes) * len(data.rows) <= 8 * LISTED
    if exactly:
        data = read_gallery(*sets, template, leave_one_out, np.float64)
    data = shifts.apply(data, gallery, gallery if leave_one_out else probes, gallery_ids, probe_ids)
    check_rates(data, settings)
    bar: AbstractContextManager[Any] = progress_bar("comparing") if progress == "auto" else nullcontext(progress)
    with bar as report:
        result = compare_exactly(data) if exactly else compare_in_tiles(data, threads, report)
    evaluation = assemble(data, result, settings, margin, leave_one_out, shifts.record(), exactly)
    for note in evaluation.all_notes:
        if OTHER_LENGTHS not in note:  # it changes no score, and concerns most models
            warnings.warn(note, UserWarning, stacklevel=2)
    return evaluation


def check_probes(probes: Any, probe_labels: Any, leave_one_out: bool) -> None:
    """Refuse probes beside leave one out, and neither of the two."""
    if leave_one_out and not (probes is None and probe_labels is None):
        raise InputError("leave_one_out takes the enrolled items as probes: leave out probes and probe_labels")
    if not leave_one_out and (probes is None or probe_labels is None):
        raise InputError("probes and probe_labels are needed, or leave_one_out=True to take the enrolled items")


def check_rates(data: GalleryData, settings: Settings) -> None:
    """Refuse rates that are too small for the number of comparisons, before they are made."""
    pairs_at_far(settings.target_far, data.negatives, "target_far")
    if settings.distances is not None:
        data.axis.check_range(settings.distances)
    else:
        pairs_at_far(settings.far[1 if settings.frr is not None else 0], data.negatives, "far")


def assemble(
    data: GalleryData,
    result: GalleryPass,
    settings: Settings,
    margin: float,
    leave_one_out: bool,
    record: dict[str, Any] | None,
    exactly: bool,
) -> Evaluation:
    """Turn the results of the pass into an evaluation."""
    scores, known_class = result.scores, data.probe_class[: data.known]
    hits = [np.bincount(known_class, weights=scores.own_rank <= k, minlength=data.classes) for k in settings.k]
    ranks = RankCounts(
        data.known_sizes,
        settings.k,
        np.array(hits, np.int64).reshape(len(settings.k), data.classes).T,
        None,
        None,
    )
    levels = choose_levels(result.counts.negatives)
    identification = Identification(
        template=data.template,
        leave_one_out=leave_one_out,
        sides="none" if record is None else str(record["sides"]),
        margin=float(margin),
        enrolled=data.enrolled,
        unknown_names=data.unknown_names,
        probe_class=data.probe_class,
        by_probe=result.by_probe,
        levels=levels,
        class_share=class_share(data, result.counts.negatives, result.by_probe, levels),
        **scores._asdict(),
    )
    return Evaluation(
        settings=settings,
        names=data.names,
        sizes=data.known_sizes,
        counts=result.counts,
        ranks=ranks,
        summary=summarize(result.counts, settings),
        method="exact" if exactly else "binned",
        item_noise=probe_noise(data, scores.own_distance, levels),
        notes=data.notes,
        equalizer=record,
        comparison="gallery",
        identification=identification,
    )
