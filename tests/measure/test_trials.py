"""Trials: scores, rates by group and costs against loops that share no code with the package."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

import isomargin as im
from isomargin.measure.scores.detection import cllr, fit_log_ratios, min_cllr, min_dcf
from isomargin.measure.statistics.resampling import Resampler
from isomargin.measure.trials import evaluate_trials

pytestmark = pytest.mark.filterwarnings("ignore:.*(of OPIS is noise|of OPIS may be noise)")

DATA = Path(__file__).parents[3] / "shared" / "data"
CLOSE = {"rel": 1e-9, "abs": 1e-12}


def made_trials(seed, number=900, groups=7, decimals=1):
    """Trials with ties; some negatives lie within one group, some positives between two."""
    generator = np.random.default_rng(seed)
    same = generator.random(number) < 0.4
    pairs = generator.integers(0, groups, (number, 2))
    own = same & (generator.random(number) < 0.7)
    pairs[own, 1] = pairs[own, 0]
    difficulty = generator.normal(size=groups)
    scores = 2.0 * same + generator.normal(size=number) + 0.4 * difficulty[pairs].mean(axis=1)
    return np.round(scores, decimals), same, np.array([f"g{i}" for i in range(groups)])[pairs]


# ----- definitions


class ByDefinition:
    """Every score by loops over the trials."""

    def __init__(self, scores, same, groups):
        groups = [[group] if isinstance(group, str | np.str_) else list(group) for group in groups]
        rows = zip(scores, same, groups, strict=True)
        self.trials = [(float(score), bool(match), set(names)) for score, match, names in rows]
        self.names = sorted(set().union(*(names for *_, names in self.trials)))

    def rates(self, threshold, group=None):
        """FAR and FRR if scores of at least the threshold are accepted."""
        chosen = [trial for trial in self.trials if group is None or group in trial[2]]
        negatives = [score for score, match, _ in chosen if not match]
        positives = [score for score, match, _ in chosen if match]
        far = sum(score >= threshold for score in negatives) / len(negatives)
        return far, sum(score < threshold for score in positives) / len(positives)

    def threshold_at_far(self, far):
        """The highest score of a negative trial at which the FAR is reached."""
        negatives = sorted((score for score, match, _ in self.trials if not match), reverse=True)
        return next(score for score in negatives if self.rates(score)[0] >= far - 1e-12)

    def opis(self, far, grid):
        high, low = self.threshold_at_far(far[0]), self.threshold_at_far(far[1])
        total = 0.0
        for step in range(grid):
            threshold = high + (low - high) * step / (grid - 1)
            utilities = []
            for group in self.names:
                false_accepts, false_rejects = self.rates(threshold, group)
                first, second = 1 - false_accepts, 1 - false_rejects
                utilities.append(2 * first * second / (first + second))
            mean = sum(utilities) / len(utilities)
            total += sum((utility - mean) ** 2 for utility in utilities) / len(utilities)
        return total / grid

    def eer(self):
        """Where the ROC curve, linear between its points, has FAR = FRR."""
        points = [(0.0, 1.0)]
        points += [self.rates(score) for score in sorted({score for score, *_ in self.trials}, reverse=True)]
        for (far, frr), (next_far, next_frr) in itertools.pairwise(points):
            if next_far >= next_frr:
                part = (frr - far) / ((frr - far) + (next_far - next_frr))
                return far + part * (next_far - far)
        raise AssertionError("the curves do not cross")

    def min_dcf(self, prior, false_accept, false_reject):
        costs = [false_reject * prior, false_accept * (1 - prior)]
        for score, *_ in self.trials:
            far, frr = self.rates(score)
            costs.append(false_reject * prior * frr + false_accept * (1 - prior) * far)
        return min(costs) / min(false_reject * prior, false_accept * (1 - prior))

    def min_cllr(self):
        """PAV by merging neighbouring blocks until the share of matches falls with the score."""
        blocks = []
        for score in sorted({score for score, *_ in self.trials}, reverse=True):
            matches = [match for value, match, _ in self.trials if value == score]
            blocks.append([sum(matches), len(matches)])
            while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] <= blocks[-1][0] * blocks[-2][1]:
                matched, number = blocks.pop()
                blocks[-1] = [blocks[-1][0] + matched, blocks[-1][1] + number]
        positives, negatives = (sum(match is kind for _, match, _ in self.trials) for kind in (True, False))
        cost = 0.0
        for matched, number in blocks:
            others = number - matched
            if matched and others:
                ratio = (matched / others) / (positives / negatives)
                cost += matched / positives * math.log2(1 + 1 / ratio) + others / negatives * math.log2(1 + ratio)
        return cost / 2


# ----- against the definitions


@pytest.mark.parametrize("kind", ["one group", "two groups"])
def test_scores_are_those_of_their_definitions(kind):
    scores, same, groups = made_trials(seed=1)
    groups = groups[:, 0] if kind == "one group" else groups
    evaluation = im.evaluate_pairs(scores, same, groups, grid=11, target_far=0.05, prior=0.1, cost_false_reject=3)
    expected = ByDefinition(scores, same, groups)
    assert evaluation.names.tolist() == expected.names
    assert evaluation.opis == pytest.approx(expected.opis((0.01, 0.1), 11), **CLOSE)
    assert evaluation.eer == pytest.approx(expected.eer(), **CLOSE)
    assert evaluation.min_dcf == pytest.approx(expected.min_dcf(0.1, 1, 3), **CLOSE)
    assert evaluation.min_cllr == pytest.approx(expected.min_cllr(), **CLOSE)
    threshold = expected.threshold_at_far(0.05)
    for point in (evaluation.target, evaluation.at_score(threshold)):
        assert (point.far, point.frr) == pytest.approx(expected.rates(threshold), **CLOSE)
        by_group = [expected.rates(threshold, group) for group in expected.names]
        assert point.class_far == pytest.approx([far for far, _ in by_group], **CLOSE)
        assert point.class_frr == pytest.approx([frr for _, frr in by_group], **CLOSE)
    assert evaluation.scalars()["target_score"] == threshold
    assert evaluation.sizes.tolist() == [
        sum(group in names for *_, names in expected.trials) for group in expected.names
    ]


@pytest.mark.parametrize("name", ["clinc150-wordllama256.npz", "omniglot28.npz"])
def test_trials_of_real_embeddings_have_the_scores_of_their_definitions(name):
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in shared/data")
    with np.load(DATA / name) as file:
        vectors, labels = (file["embeddings"], file["labels"]) if "labels" in file else (file["images"], file["label"])
    generator = np.random.default_rng(0)
    classes = generator.choice(np.unique(labels), 12, replace=False)
    rows = np.concatenate([np.flatnonzero(labels == name)[:10] for name in classes])
    vectors = vectors[rows].reshape(len(rows), -1).astype(np.float64)
    labels = labels[rows].astype(str)
    pairs = generator.permutation(np.stack(np.triu_indices(len(rows), 1), axis=1))[:1200]
    same, groups = labels[pairs[:, 0]] == labels[pairs[:, 1]], labels[pairs]
    evaluation = evaluate_trials(vectors, pairs, same, groups, grid=11, target_far=0.05)
    unit = vectors / np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    cosines = np.round((unit[pairs[:, 0]] * unit[pairs[:, 1]]).sum(axis=1), 11)
    expected = ByDefinition(cosines, same, groups)
    assert evaluation.eer == pytest.approx(expected.eer(), **CLOSE)
    assert evaluation.min_dcf == pytest.approx(expected.min_dcf(0.01, 1, 1), **CLOSE)
    assert evaluation.min_cllr == pytest.approx(expected.min_cllr(), **CLOSE)
    threshold = expected.threshold_at_far(0.05)
    by_group = [expected.rates(threshold, group) for group in expected.names]
    assert evaluation.target.class_far == pytest.approx([far for far, _ in by_group], **CLOSE)
    assert evaluation.target.class_frr == pytest.approx([frr for _, frr in by_group], **CLOSE)


def test_all_pairs_as_trials_give_the_scores_of_the_embeddings():
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(12), 8)
    vectors = generator.normal(size=(12, 6))[labels] + 0.8 * generator.normal(size=(96, 6))
    whole = im.evaluate(vectors, labels, k=(1,))
    rows = np.stack(np.triu_indices(96, 1), axis=1)
    same, groups = labels[rows[:, 0]] == labels[rows[:, 1]], labels[rows]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = np.linalg.norm(unit[rows[:, 0]] - unit[rows[:, 1]], axis=1)
    by_score = im.evaluate_pairs(distances, same, groups, higher_is_more_similar=False)
    for trials in (evaluate_trials(vectors, rows, same, groups), by_score):
        for name in ("opis", "epsilon_opis", "eer", "auc", "far", "frr", "far_threshold_spread", "mean_utility"):
            assert trials.scalars()[name] == pytest.approx(whole.scalars()[name], **CLOSE), name
        columns = ["far", "frr", "eer", "auc", "far_threshold", "positive_pairs", "negative_pairs", "mean_utility"]
        assert trials.per_class[columns].to_numpy() == pytest.approx(whole.per_class[columns].to_numpy(), **CLOSE)
        assert trials.intervals()["eer"].high == pytest.approx(whole.intervals()["eer"].high, rel=1e-6)


def test_an_equalizer_shifts_the_similarities_of_trials_as_it_does_those_of_all_pairs():
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(15), 10)
    vectors = generator.normal(size=(15, 6))[labels] + 0.8 * generator.normal(size=(150, 6))
    equalizer = im.Equalizer(neighbours=10).fit(vectors)
    rows = np.stack(np.triu_indices(150, 1), axis=1)
    same = labels[rows[:, 0]] == labels[rows[:, 1]]
    trials = evaluate_trials(vectors, rows, same, labels[rows], equalizer=equalizer)
    whole = im.evaluate(vectors, labels, equalizer=equalizer)
    assert trials.axis.name == "equalized_distance"
    assert (trials.opis, trials.eer) == pytest.approx((whole.opis, whole.eer), **CLOSE)


# ----- costs of likelihood ratios


def test_costs_of_small_examples():
    # Brümmer and du Preez: ratios of 1 cost one bit; a wrong ratio of 3 costs log2(4), a right one log2(4/3).
    assert cllr(np.log([3.0]), np.log([3.0])) == pytest.approx((math.log2(4 / 3) + math.log2(4)) / 2)
    # Rejecting all costs 1: with a prior of 1%, one false accept in ten costs 9.9 times as much.
    assert min_dcf(np.array([0.5]), np.array([0.1, *[0.9] * 9]), 0.01, 1, 1) == 1
    assert min_dcf(np.array([0.2, 0.6]), np.array([0.5, 0.7]), 0.5, 1, 1) == 0.5
    # The first negative trial and the third positive one are in the wrong order: the two share a ratio.
    positives, negatives = np.array([0.1, 0.2, 0.5]), np.array([0.4, 0.6])
    ratio = (1 / 1) / (3 / 2)
    expected = (math.log2(1 + 1 / ratio) / 3 + math.log2(1 + ratio) / 2) / 2
    assert min_cllr(positives, negatives) == pytest.approx(expected)


def test_logistic_regression_has_the_largest_likelihood():
    generator = np.random.default_rng(0)
    same = np.arange(300) % 3 == 0
    scores = 40 + 5 * (generator.normal(size=300) + same)

    def loss(line):
        log_odds = line[0] * (scores - 40) + line[1]
        losses = np.logaddexp(0, log_odds) - np.where(same, 101 / 102, 1 / 202) * log_odds
        return losses[same].mean() / 2 + losses[~same].mean() / 2

    slope, intercept = fit_log_ratios(scores, same)
    found = minimize(loss, [0.1, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 5000})
    assert (slope, intercept + 40 * slope) == pytest.approx(tuple(found.x), rel=1e-4)


def test_calibrated_scores_leave_out_both_groups_of_a_trial():
    scores, same, groups = made_trials(seed=3, groups=15)
    evaluation = im.evaluate_pairs(scores, same, groups)
    order = np.random.default_rng(0).permutation(15).tolist()
    fold = {f"g{i}": order.index(evaluation.names.tolist().index(f"g{i}")) % 5 for i in range(15)}
    held_out = [{fold[name] for name in trial} for trial in groups]
    lines, costs = {}, {True: [], False: []}
    for score, match, folds in zip(scores, same, held_out, strict=True):
        if (key := tuple(sorted(folds))) not in lines:
            rest = np.array([not folds & others for others in held_out])
            lines[key] = fit_log_ratios(scores[rest], same[rest])
        ratio = math.exp(lines[key][0] * score + lines[key][1])
        costs[bool(match)].append(math.log2(1 + 1 / ratio) if match else math.log2(1 + ratio))
    assert len(lines) == 15
    assert evaluation.trials.folds == "groups"
    assert evaluation.cllr == pytest.approx((np.mean(costs[True]) + np.mean(costs[False])) / 2, **CLOSE)
    assert evaluation.min_cllr < evaluation.cllr < 1


def test_few_groups_are_calibrated_by_trials_with_a_note():
    scores, same, groups = made_trials(seed=3, groups=2)
    with pytest.warns(UserWarning, match="too few groups to calibrate"):
        evaluation = im.evaluate_pairs(scores, same, groups)
    assert evaluation.trials.folds == "trials"
    shuffled = np.random.default_rng(0).permutation(len(scores))
    again = im.evaluate_pairs(scores[shuffled], same[shuffled])
    assert again.cllr == pytest.approx(evaluation.cllr, rel=0.02)  # folds of equal scores differ, and nothing else
    assert evaluation.min_cllr < evaluation.cllr < 1


# ----- what a list cannot give


def test_what_a_list_cannot_give_is_absent(tmp_path):
    scores, same, groups = made_trials(seed=1)
    grouped, alone = im.evaluate_pairs(scores, same, groups), im.evaluate_pairs(scores, same)
    for evaluation in (grouped, alone):
        assert evaluation.recall_at_k == {}
        shown = {*evaluation.scalars(), *evaluation.scores(), *evaluation.per_class.columns, *evaluation.intervals()}
        assert not any(name.startswith(("recall", "map", "r_precision")) for name in shown)
        assert evaluation.items == 900
        evaluation.save(tmp_path / "evaluation.json")
        loaded = im.Evaluation.load(tmp_path / "evaluation.json")
        assert loaded.scores() == evaluation.scores()
        assert loaded.intervals() == evaluation.intervals()
        assert loaded.at_score(1.0).far == evaluation.at_score(1.0).far
        assert repr(loaded) == repr(evaluation)
    assert "opis" in grouped.scalars()
    over_groups = {"opis", "printed_opis", "debiased_opis", "epsilon_opis", "relative_opis", "far_threshold_spread"}
    over_groups |= {"frr_threshold_spread", "far_within_two", "frr_within_two", "class_thresholds", "within_two"}
    assert not over_groups & {*alone.scores(), *alone.intervals()}
    assert math.isnan(alone.opis)
    assert math.isnan(alone.epsilon_opis)
    assert "min_dcf" not in im.evaluate(np.eye(4)[np.arange(40) % 4], np.arange(40) % 4, distances=(0.1, 1)).scalars()


def test_the_order_and_the_scale_of_scores_change_nothing():
    scores, same, _ = made_trials(seed=5)
    one, other = im.evaluate_pairs(scores, same), im.evaluate_pairs(7 - 3 * scores, same, higher_is_more_similar=False)
    for name in ("eer", "auc", "far", "frr", "min_dcf", "min_cllr"):
        assert one.scalars()[name] == pytest.approx(other.scalars()[name], **CLOSE)
    assert other.scalars()["target_score"] == pytest.approx(7 - 3 * one.scalars()["target_score"])


# ----- intervals


def test_resampled_rates_of_mixed_trials_follow_the_trials_to_first_order():
    scores, same, groups = made_trials(seed=2, groups=9)
    evaluation = im.evaluate_pairs(scores, same, groups)
    resampler, threshold = Resampler(evaluation), 1.2
    weights = resampler.undrawn().astype(float)
    weights[0, 3] += 1e-6  # the derivative by the weight of one group
    far, frr = resampler.rates_at(-threshold, weights)
    nudged = np.array([1 + 1e-6 * ("g3" in trial) for trial in groups.tolist()])
    accepted = scores >= threshold
    whole = evaluation.at_score(threshold)
    expected = [
        nudged[~same & accepted].sum() / nudged[~same].sum(),
        nudged[same & ~accepted].sum() / nudged[same].sum(),
    ]
    assert (far[0] - whole.far) / (expected[0] - whole.far) == pytest.approx(1, rel=1e-3)
    assert (frr[0] - whole.frr) / (expected[1] - whole.frr) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("kind", ["trials", "one group", "two groups"])
def test_intervals_contain_the_true_eer_about_as_often_as_they_say(kind):
    # Groups shift the scores of negative trials; the truth is that of very many groups.
    repetitions, number = 30, 40
    generator = np.random.default_rng(0)

    def draw(groups, trials):
        same = np.arange(trials) % 3 == 0
        pairs = generator.integers(0, groups, (trials, 2))
        pairs[same, 1] = pairs[same, 0]
        shift = 0.0 if kind == "trials" else 0.5
        effect = shift * generator.normal(size=groups)
        used = effect[pairs] if kind == "two groups" else effect[pairs[:, :1]]
        scores = 2.5 * same + generator.normal(size=trials) + np.where(same, 0.0, used.sum(axis=1))
        return scores, same, {"trials": None, "one group": pairs[:, 0], "two groups": pairs}[kind]

    truth = im.evaluate_pairs(*draw(4000, 300_000)[:2]).eer
    found = [im.evaluate_pairs(*draw(number, 1500)).intervals(draws=100)["eer"] for _ in range(repetitions)]
    assert 0.8 <= np.mean([interval.low <= truth <= interval.high for interval in found]) <= 1
    widths = [interval.high - interval.low for interval in found]
    assert 2.6 <= np.mean(widths) / np.std([interval.value for interval in found]) <= 6  # 3.9 if it is normal


def test_trials_decided_alike_have_the_rule_of_three():
    same = np.arange(400) < 100
    rates = im.choose_threshold(im.evaluate_pairs(np.where(same, 2.0, np.linspace(0, 1, 400)), same), far=0.01)
    assert rates.frr_interval.high == pytest.approx(1 - 0.05 ** (1 / 100))


# ----- bad input


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"scores": [0.1, math.nan, 0.3, math.inf]}, "2 of 4 scores are NaN or infinite, the first in trial 1"),
        ({"scores": ["a", "b", "c", "d"]}, "one dimension of numbers is needed"),
        ({"scores": []}, "scores is empty"),
        ({"same": [1, 0, 1]}, r"same has shape \(3,\), scores has 4 trials"),
        ({"same": [1, 0, 2, 1]}, "same has values other than True and False"),
        ({"same": [1, 1, 1, 1]}, "none of the 4 trials is negative"),
        ({"same": [0, 0, 0, 0]}, "none of the 4 trials is positive"),
        ({"groups": ["a", "b"]}, "groups has 2 entries, scores has 4"),
        ({"groups": np.zeros((4, 3), int)}, r"groups has shape \(4, 3\)"),
        ({"groups": ["a", None, "b", "c"]}, "groups cannot be used"),
        ({"groups": ["p", "n", "p", "n"]}, "no group has both positive and negative trials"),
        ({"prior": 1.0}, "prior is 1.0"),
        ({"cost_false_accept": 0}, "cost_false_accept is 0"),
        ({"far": (1e-4, 0.5)}, "far asks for a false accept rate of 0.0001"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(change, sentence):
    plain = {"scores": [0.9, 0.1, 0.8, 0.3], "same": [True, False, True, False], "far": (0.5, 0.9), "target_far": 0.5}
    with pytest.raises(im.InputError, match=sentence):
        im.evaluate_pairs(**{**plain, **change})


def test_notions_that_do_not_carry_over_are_refused():
    scores, same, groups = made_trials(seed=1)
    alone, grouped = im.evaluate_pairs(scores, same), im.evaluate_pairs(scores, same, groups)
    with pytest.raises(im.InputError, match="these trials have no groups"):
        im.compare({"one": alone, "other": alone})
    with pytest.raises(im.InputError, match="does not say which items they share"):
        grouped.intervals(items=(np.eye(3), [0, 1, 2]))
    with pytest.raises(im.InputError, match="call at with a distance"):
        im.evaluate(np.eye(4)[np.arange(40) % 4], np.arange(40) % 4, distances=(0.1, 1)).at_score(0.5)
