"""``evaluate_pairs``: measure a list of trials, pairs of which it is known whether they match.

The trials come with scores, or with embeddings from which distances are computed in float64. The list need not hold all
pairs, so what needs all of them, such as recall@k, is absent from the result.
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.labels import is_tensor
from isomargin.measure.evaluate import EqualizesSimilarity
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.axis import L2, ScoreAxis, similarity_of
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.inputs import OTHER_LENGTHS, as_matrix, note_on_lengths, unit_rows
from isomargin.measure.pairs.retrieval import QUANTUM
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.pairs.trial_counts import TrialDetails, TrialGroups, as_groups, count_trials, no_ranks
from isomargin.measure.scores.detection import cross_fitted_cllr, folds_of_groups, folds_of_pairs
from isomargin.measure.settings import MeanCurve, Settings, Utility
from isomargin.measure.statistics.trial_noise import measure_trial_noise

PAIRS_AT_ONCE = 1 << 22  # values of two rows that are multiplied at a time


def evaluate_pairs(
    scores: Any,
    same: Any,
    groups: Any = None,
    *,
    higher_is_more_similar: bool = True,
    far: tuple[float, float] = (1e-2, 1e-1),
    frr: float | None = None,
    grid: int = 101,
    epsilon: float = 0.1,
    c: float = 1.0,
    utility: Utility = "specificity_sensitivity",
    mean_curve: MeanCurve = "classes",
    target_far: float = 1e-2,
    target_frr: float = 5e-2,
    prior: float = 0.01,
    cost_false_accept: float = 1.0,
    cost_false_reject: float = 1.0,
) -> Evaluation:
    """Measure a list of trials by their scores: error rates, minDCF and Cllr, and how consistent they are over groups.

    A trial is a pair that matches (positive) or does not (negative). Its groups are what one threshold should serve
    equally well: the speakers, languages or sources of its two sides. A trial counts for each of its groups, once:
    a negative trial between two speakers for both, a trial within a group for that group alone, a positive trial
    between two languages for both languages. Pooled rates count every trial once.

    The result is an `Evaluation` whose classes are the groups. What a list cannot give, such as recall@k, is absent;
    without groups, so are the scores over groups, such as OPIS, and intervals resample trials instead of groups.

    Args:
        scores: (trials,) real numbers on any scale.
        same: (trials,) booleans, or 0 and 1: whether the two sides match.
        groups: None, (trials,) one group per trial, or (trials, 2) two groups per trial; integers or text.
        higher_is_more_similar: whether a pair is accepted if its score is at least the threshold; False for distances.
        far: the calibration range, given as the pooled false accept rates at its two ends.
        frr: if given, the calibration range starts where the pooled false reject rate falls to this value instead.
        grid: number of evenly spaced thresholds in the calibration range at which curves are evaluated.
        epsilon: share of the groups in the best part, and in the worst part, of epsilon-OPIS.
        c: weight of sensitivity in the utility; above 1, false rejects count more than false accepts.
        utility: the two rates to combine: ``"specificity_sensitivity"`` or ``"precision_recall"``.
        mean_curve: the curve from which OPIS measures deviations: ``"classes"`` for the mean of the groups' curves, or
            ``"pooled"`` for the curve of all trials.
        target_far: false accept rate of the single threshold whose effect on each group is reported.
        target_frr: false reject rate for which each group's own threshold is found, to measure their spread.
        prior: share of matching pairs to expect, for minDCF.
        cost_false_accept: cost of a false accept, for minDCF.
        cost_false_reject: cost of a false reject, for minDCF.

    Raises:
        InputError: if the trials or settings cannot be evaluated; the message says how to fix it.

    >>> import numpy as np
    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> same = np.arange(4000) % 4 == 0
    >>> groups = generator.choice(["de", "en", "fr"], 4000)
    >>> evaluation = im.evaluate_pairs(generator.normal(size=4000) + 3 * same, same, groups)
    >>> round(evaluation.eer, 3), round(evaluation.min_dcf, 3), evaluation.recall_at_k
    (0.064, 0.538, {})
    >>> evaluation.per_class[["class", "positive_pairs", "negative_pairs"]].values.tolist()
    [['de', 300, 1017], ['en', 340, 991], ['fr', 360, 992]]
    """
    settings = trial_settings(
        far=far,
        frr=frr,
        grid=grid,
        epsilon=epsilon,
        c=c,
        utility=utility,
        mean_curve=mean_curve,
        target_far=target_far,
        target_frr=target_frr,
    )
    values = as_scores(scores)
    axis = ScoreAxis.of_scores(values, checks.truth(higher_is_more_similar, "higher_is_more_similar"))
    matched = as_matches(same, len(values), "scores")
    details = (prior, cost_false_accept, cost_false_reject)
    evaluation = run_trials(axis.shown(values), matched, as_groups(groups, len(values)), axis, settings, details)
    warn_of(evaluation)
    return evaluation


def evaluate_trials(
    embeddings: Any,
    rows: NDArray[np.int64],
    same: Any,
    groups: Any = None,
    *,
    equalizer: EqualizesSimilarity | None = None,
    ids: Any = None,
    prior: float = 0.01,
    cost_false_accept: float = 1.0,
    cost_false_reject: float = 1.0,
    **choices: Any,
) -> Evaluation:
    """Measure a list of trials by the distances of embeddings, computed one by one in float64.

    Args:
        embeddings: (n, d) embeddings, as for `evaluate`.
        rows: (trials, 2) the rows that each trial compares.
        same: (trials,) whether the two sides match.
        groups: as for `evaluate_pairs`.
        equalizer: a fitted equalizer, to measure equalized similarities instead of cosines.
        ids: (n,) names of the rows, by which the equalizer recognises rows of its reference.
        prior: share of matching pairs to expect, for minDCF.
        cost_false_accept: cost of a false accept, for minDCF.
        cost_false_reject: cost of a false reject, for minDCF.
        choices: further settings, as for `evaluate`.
    """
    settings = trial_settings(**choices)
    matched = as_matches(same, len(rows), "rows")
    shifts = None if equalizer is None else equalizer.shifts(embeddings, ids, None)
    axis = L2 if shifts is None else shifts.axis
    distances, notes = trial_distances(embeddings, rows, None if shifts is None else shifts.values, axis)
    details = (prior, cost_false_accept, cost_false_reject)
    notes += () if shifts is None else shifts.notes
    record = None
    if equalizer is not None:
        record = equalizer.record(False)
        if shifts is not None and shifts.own_class is not None:
            record["own_class"] = shifts.own_class
    evaluation = run_trials(distances, matched, as_groups(groups, len(rows)), axis, settings, details, notes, record)
    warn_of(evaluation)
    return evaluation


def run_trials(
    distances: Floats,
    same: NDArray[np.bool_],
    groups: TrialGroups,
    axis: ScoreAxis,
    settings: Settings,
    costs: tuple[float, float, float],
    notes: tuple[str, ...] = (),
    equalizer: dict[str, Any] | None = None,
) -> Evaluation:
    """Count the trials and assemble the evaluation; ``costs`` are the prior and the two costs."""
    for kind, number in (("positive", int(same.sum())), ("negative", int((~same).sum()))):
        if number == 0:
            raise InputError(f"none of the {len(same):,} trials is {kind}: trials of both kinds are needed")
    prior = checks.share(costs[0], "prior")
    accept = checks.above_zero(costs[1], "cost_false_accept")
    reject = checks.above_zero(costs[2], "cost_false_reject")
    counts = count_trials(distances, same, groups, axis)
    similarity = similarity_of(distances) if axis.has_similarities else -distances
    cost, folds = calibrated_cllr(similarity, same, groups)
    grouped = len(groups.names) > 1
    if grouped:
        notes += notes_on_groups(counts.positives.totals, counts.negatives.totals)
        if folds == "trials":
            notes += (
                "there are too few groups to calibrate scores without the groups of a trial: Cllr leaves out trials "
                "instead, and may be too low",
            )
    return Evaluation(
        settings=settings,
        names=groups.names,
        sizes=groups.sizes().astype(np.int64),
        counts=counts,
        ranks=no_ranks(len(groups.names)),
        summary=summarize(counts, settings),
        method="exact",
        item_noise=measure_trial_noise(counts) if grouped else None,
        notes=notes,
        equalizer=equalizer,
        comparison="trials",
        trials=TrialDetails(prior, accept, reject, cost, folds),
    )


def calibrated_cllr(similarity: Floats, same: NDArray[np.bool_], groups: TrialGroups) -> tuple[float, Any]:
    """Return the Cllr of calibrated scores, and what was left out to calibrate a trial: its groups, or the trial."""
    if len(groups.names) > 1:
        fold_of = folds_of_groups(len(groups.names))
        cost = cross_fitted_cllr(similarity, same, np.stack([fold_of[groups.first], fold_of[groups.second]], axis=1))
        if not np.isnan(cost):
            return cost, "groups"
    return cross_fitted_cllr(similarity, same, folds_of_pairs(similarity, same)), "trials"


def trial_distances(
    embeddings: Any, rows: NDArray[np.int64], shifts: Floats | None, axis: ScoreAxis
) -> tuple[Floats, tuple[str, ...]]:
    """(trials,) the distance of each pair of rows, in float64, and notes about the embeddings."""
    used, place = np.unique(rows, return_inverse=True)
    place = place.reshape(rows.shape)
    matrix, lengths = as_matrix(embeddings), np.empty(len(used))
    vectors = unit_rows(matrix[used], np.arange(len(used)), float, lengths)
    similarity = np.empty(len(rows))
    step = max(1, PAIRS_AT_ONCE // vectors.shape[1])
    for first in range(0, len(rows), step):
        part = place[first : first + step]
        similarity[first : first + step] = np.einsum("ij,ij->i", vectors[part[:, 0]], vectors[part[:, 1]])
    if shifts is not None:
        similarity += shifts[rows[:, 0]] + shifts[rows[:, 1]]
    return axis.distances(similarity, QUANTUM), tuple(note_on_lengths(lengths))


# ----- checks


def trial_settings(**choices: Any) -> Settings:
    """Return the settings of an evaluation of trials, which has no neighbours."""
    return Settings.from_values(**{**choices, "k": (), "map_at_r": False})


def as_scores(scores: Any) -> Floats:
    """(trials,) scores in float64; anything but finite numbers is refused."""
    array = scores.detach().cpu().double().numpy() if is_tensor(scores) else np.asarray(scores)
    if array.dtype.kind not in "fiu" or array.ndim != 1:
        raise InputError(
            f"scores has shape {array.shape} and type {array.dtype}: one dimension of numbers is needed, one per trial"
        )
    if len(array) == 0:
        raise InputError("scores is empty: at least one positive and one negative trial are needed")
    values = array.astype(np.float64)
    if wrong := int((~np.isfinite(values)).sum()):
        first = int(np.argmax(~np.isfinite(values)))
        raise InputError(
            f"{wrong:,} of {len(values):,} scores are NaN or infinite, the first in trial {first} (from 0): "
            "remove these trials or score them again"
        )
    return values


def as_matches(same: Any, trials: int, name: str) -> NDArray[np.bool_]:
    """(trials,) whether each trial is positive, from booleans or from 0 and 1."""
    array = same.detach().cpu().numpy() if is_tensor(same) else np.asarray(same)
    if array.shape != (trials,):
        raise InputError(f"same has shape {array.shape}, {name} has {trials:,} trials: one value per trial is needed")
    if array.dtype.kind == "O":
        array = np.array([value if isinstance(value, bool | int | float) else np.nan for value in array], np.float64)
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise InputError("same has values other than True and False, or 1 and 0: say for each trial whether it matches")
    return array.astype(np.bool_)


def notes_on_groups(positives: NDArray[np.int64], negatives: NDArray[np.int64]) -> tuple[str, ...]:
    """Return a note if groups lack trials of one kind."""
    lacking = int(((positives == 0) | (negatives == 0)).sum())
    if lacking == 0:
        return ()
    if lacking == len(positives):
        raise InputError(
            "no group has both positive and negative trials, so none has a curve: give groups that have both, or none"
        )
    return (
        f"{lacking:,} of {len(positives):,} groups lack positive or negative trials: they have no curve and "
        "count in the pooled rates alone",
    )


def warn_of(evaluation: Evaluation) -> None:
    """Issue the notes of an evaluation as warnings."""
    for note in evaluation.all_notes:
        if OTHER_LENGTHS not in note:  # it changes no score, and concerns most models
            warnings.warn(note, UserWarning, stacklevel=3)
