"""``ClassThresholds`` against loops that share no code with it, and what its users rely on."""

import json
import math
import warnings

import numpy as np
import pytest

import isomargin as im
from isomargin.equalize.class_offsets import quantiles_of_others

SIZES = [2, 3, 5, 9, 4, 6, 7, 2, 3, 8, 5, 6, 1]
MIX = {"shrink": 0.3, "weights": (0.5, 0.25)}


def uneven_sizes():
    """13 classes of different widths, of which one has a single item, in random order."""
    generator = np.random.default_rng(2)
    labels = generator.permutation(np.repeat([f"class {number:02}" for number in range(13)], SIZES))
    numbers = np.array([int(label[-2:]) for label in labels])
    centres = generator.normal(size=(13, 6)) + generator.normal(size=6)
    return centres[numbers] + np.linspace(0.3, 1.2, 13)[numbers, None] * generator.normal(size=(len(labels), 6)), labels


def crowded(seed=0, items=8, classes=60, common=(0.0, 8.0)):
    """Classes in six regions, whose classes have little or much in common; seeds differ in the items."""
    generator = np.random.default_rng(0)
    regions = np.eye(12)[:6] * np.linspace(*common, 6)[:, None]
    centres = (regions + generator.normal(size=(classes // 6, 6, 12))).reshape(classes, 12)
    labels = np.arange(classes * items) % classes
    return centres[labels] + 0.4 * np.random.default_rng([seed, 1]).normal(size=(len(labels), 12)), labels


def alike(seed=0):
    """40 classes of three items that differ by chance alone: their centres are at right angles."""
    labels = np.arange(120) % 40
    return np.eye(40)[labels] + 0.2 * np.random.default_rng(seed).normal(size=(120, 40)), labels


def fitted(*data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return im.ClassThresholds(**options).fit(*data)


# ----- the definition, by loops


def cosine(one, other):
    return float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


def similarity(item, members, template):
    """How similar an item is to a class."""
    units = [member / np.linalg.norm(member) for member in members]
    if template == "mean":
        return cosine(item, np.mean(units, axis=0))
    return max(cosine(item, member) for member in units)


def mean_positive(members, template):
    found = [
        similarity(member, members[:place] + members[place + 1 :], template) for place, member in enumerate(members)
    ]
    return float(np.mean(found))


def kept(compared):
    return 0.0 if compared < 1 else compared * 0.7 / (compared * 0.7 + 0.3)


def parts(classes, template):
    """By class: the quantile of its negatives and its mean positive; and their means over classes of several items."""
    quantiles, positives = {}, {}
    for name, members in classes.items():
        negatives = [similarity(x, members, template) for other in classes if other != name for x in classes[other]]
        quantiles[name] = float(np.quantile(negatives, 0.998))
        if len(members) > 1:
            positives[name] = mean_positive(members, template)
    common = [np.mean([quantiles[name] for name in positives]), np.mean([positives[name] for name in positives])]
    return quantiles, positives, common


def offsets(classes, template):
    quantiles, positives, (quantile, positive) = parts(classes, template)
    return {
        name: kept(len(members) - 1)
        * (0.5 * (quantiles[name] - quantile) + 0.25 * (positives.get(name, positive) - positive))
        for name, members in classes.items()
    }


def without_item(classes, template):
    """By class and place: the mean positive without that item, raised by what classes of that size lose on average."""
    found, lost = {}, {}
    for name, members in classes.items():
        if len(members) > 2:
            full = mean_positive(members, template)
            for place in range(len(members)):
                found[name, place] = mean_positive(members[:place] + members[place + 1 :], template)
                lost.setdefault(len(members), []).append(full - found[name, place])
    return {key: value + np.mean(lost[len(classes[key[0]])]) for key, value in found.items()}


def rates_by_definition(classes, template, adjusted):
    """FNIR around FPIR 10%, with each class left out in turn; the rank is that of the adjusted similarities."""
    unknown, known = [], []
    left = without_item(classes, template)
    for out in classes:
        enrolled = {name: members for name, members in classes.items() if name != out}
        shift = offsets(enrolled, template) if adjusted else dict.fromkeys(enrolled, 0.0)
        quantiles, _, (quantile, positive) = parts(enrolled, template)
        unknown += [max(similarity(x, enrolled[c], template) - shift[c] for c in enrolled) for x in classes[out]]
        for name, members in enrolled.items():
            for place, item in enumerate(members):
                rest = members[:place] + members[place + 1 :]
                if rest:
                    own = similarity(item, rest, template)
                    if adjusted and len(rest) > 1:
                        apart = 0.5 * (quantiles[name] - quantile) + 0.25 * (left[name, place] - positive)
                        own -= kept(len(rest) - 1) * apart
                    others = max(similarity(item, enrolled[c], template) - shift[c] for c in enrolled if c != name)
                    known.append(own if own >= others else -np.inf)
    rates = []
    for fpir in (0.05, 0.07, 0.1, 0.14, 0.2):
        for level in sorted(unknown):  # accepted is what exceeds the level
            if np.mean([score > level for score in unknown]) <= fpir + 1e-12:
                break
        rates.append(np.mean([score <= level for score in known]))
    return float(np.mean(rates))


@pytest.mark.parametrize("template", ["mean", "max"])
def test_offsets_and_cross_validation_are_as_defined(template):
    rows, labels = uneven_sizes()
    found = fitted(rows, labels, **MIX, fpir=0.1, template=template, unknowns="random", folds=13)
    classes = {name: list(rows[labels == name]) for name in found.classes_}
    expected = offsets(classes, template)
    assert found.offsets_ == pytest.approx([expected[name] for name in found.classes_], abs=1e-6)
    assert expected["class 12"] == found.offsets_[12] == 0  # one item: the common threshold
    assert found.thresholds_ == pytest.approx(found.threshold_ + found.offsets_)
    rates = found.scores_.set_index("negative_weight")["fnir"]
    assert rates[0.0] == pytest.approx(rates_by_definition(classes, template, adjusted=False), abs=1e-9)
    assert rates[0.5] == pytest.approx(rates_by_definition(classes, template, adjusted=True), abs=1e-9)


def test_quantiles_leave_out_the_own_class_and_others():
    generator = np.random.default_rng(0)
    values, class_of = generator.normal(size=(3, 50)).astype(np.float32), generator.integers(6, size=50)
    left_out = np.array([[False] * 6, [False, True, True, False, False, False], [True] * 6])
    for quantile in (0.0, 0.5, 0.9, 0.998, 1.0):
        found = quantiles_of_others(values, np.argsort(-values), class_of, np.array([0, 1, 5]), left_out, quantile)
        assert np.isnan(found[2]).all()
        for trial in range(2):
            for row, own in enumerate((0, 1, 5)):
                counted = [v for v, c in zip(values[row], class_of, strict=True) if c != own and not left_out[trial, c]]
                assert found[trial, row] == pytest.approx(np.quantile(counted, quantile), abs=1e-6)


def test_quantiles_do_not_depend_on_the_size_of_chunks(monkeypatch):
    rows, labels = uneven_sizes()
    for template in ("mean", "each"):
        whole = fitted(rows, labels, **MIX, fpir=0.1, template=template)
        with monkeypatch.context() as patch:
            patch.setattr("isomargin.equalize.enrolled.TEMPLATE_ROWS", 3)
            patch.setattr("isomargin.equalize.class_trials.PROBE_ROWS", 7)
            chunked = fitted(rows, labels, **MIX, fpir=0.1, template=template)
        assert chunked.offsets_ == pytest.approx(whole.offsets_, abs=1e-6)
        assert chunked.scores_.equals(whole.scores_)


# ----- judging


def test_class_thresholds_gain_where_some_regions_are_crowded():
    rows, labels = crowded(classes=120)
    enrolled = labels // 6 % 2 == 0  # half the classes of each region; the others are unknown
    found = fitted(rows[enrolled], labels[enrolled], unknowns="random")
    assert found.verdict_.worth_it
    assert found.verdict_.sentence.startswith("Class thresholds are worth it")
    rows, labels = crowded(seed=1, classes=120)
    known = labels // 6 % 2 == 0
    scores = found.augment_queries(rows) @ found.augment().T

    def fnir(similarities):
        level = np.quantile(similarities[~known].max(axis=1), 0.95, method="higher")
        own = similarities[known, np.searchsorted(found.classes_, labels[known])]
        return np.mean((own <= level) | (own < similarities[known].max(axis=1)))

    assert fnir(scores) < fnir(scores + found.offsets_) - 0.02


def test_it_refuses_where_classes_differ_by_chance_alone():
    refused = []
    for seed in range(8):
        found = fitted(*alike(seed), unknowns="random", folds=5)
        refused.append(not found.verdict_.worth_it)
        assert (len(set(found.thresholds_)) == 1) == refused[-1]
    assert sum(refused) >= 7


def test_a_refusal_warns_with_the_numbers_and_keeps_them():
    with pytest.warns(
        UserWarning, match=r"Keep one threshold: .* around FPIR 5% is [\d.]+%, [\d.]+% with one threshold"
    ):
        found = im.ClassThresholds(folds=5).fit(*alike())
    assert found.record()["worth_it"] is False
    assert (found.mix_.negative_weight, found.mix_.positive_weight) == (0, 0)
    assert len(found.scores_) == 6  # all mixes and one threshold, and what they did


def test_the_mix_is_the_mean_of_those_that_do_well():
    found = fitted(*crowded(), unknowns="random", folds=5)
    assert found.verdict_.worth_it
    rates = {(row.negative_weight, row.positive_weight): row.fnir for row in found.scores_.itertuples()}
    width = 0.01 * rates.pop((0, 0))
    counts = {weights: math.exp(-(rate - min(rates.values())) / width) for weights, rate in rates.items()}
    for place, weight in enumerate((found.mix_.negative_weight, found.mix_.positive_weight)):
        expected = sum(count * weights[place] for weights, count in counts.items()) / sum(counts.values())
        assert weight == pytest.approx(expected, abs=1e-6)


def test_numbers_are_used_whatever_the_verdict():
    found = fitted(*alike(), **MIX)
    assert not found.verdict_.worth_it
    assert np.any(found.offsets_)
    assert not np.any(fitted(*alike(), shrink=1, weights=(0.5, 0.25)).offsets_)


def test_more_confidence_widens_the_interval_and_refuses_more():
    data = crowded()
    loose, strict = fitted(*data, folds=5), fitted(*data, folds=5, confidence=0.999)
    assert loose.verdict_.gain.value == strict.verdict_.gain.value
    assert loose.verdict_.worth_it
    assert not strict.verdict_.worth_it
    assert np.any(loose.offsets_)
    assert not np.any(strict.offsets_)


# ----- serving and files


@pytest.mark.parametrize("template", ["mean", "each"])
def test_the_inner_product_of_augmented_vectors_is_the_cosine_minus_the_offset(template):
    rows, labels = uneven_sizes()
    found = fitted(rows, labels, **MIX, fpir=0.1, template=template)
    queries = 5 * rows[:7]
    products = found.augment_queries(queries) @ found.augment().T
    for query, of_query in zip(queries, products, strict=True):
        for vector, label, value in zip(found.templates_, found.template_labels_, of_query, strict=True):
            offset = found.offsets_[list(found.classes_).index(label)]
            assert value == pytest.approx(cosine(query, vector) - offset, abs=1e-6)
    accepted = products >= found.threshold_
    limits = found.thresholds_[np.searchsorted(found.classes_, found.template_labels_)]
    cosines = found.augment_queries(queries)[:, :-1] @ found.templates_.T
    clear = np.abs(cosines - limits) > 1e-5
    assert np.array_equal(accepted[clear], (cosines >= limits)[clear])
    some = found.augment(3 * found.templates_[[4, 2]], found.template_labels_[[4, 2]])
    assert some == pytest.approx(found.augment()[[4, 2]], abs=1e-6)


def test_files_bring_everything_back(tmp_path):
    rows, labels = crowded()
    found = fitted(rows, labels)
    found.save(tmp_path / "classes.json")
    loaded = im.ClassThresholds.load(tmp_path / "classes.json")
    assert loaded.record() == found.record()
    assert loaded.verdict_ == found.verdict_
    assert loaded.scores_.equals(found.scores_)
    assert np.array_equal(loaded.augment(), found.augment())
    assert np.array_equal(loaded.thresholds_, found.thresholds_)
    assert np.array_equal(loaded.template_labels_, found.template_labels_)
    values = json.loads((tmp_path / "classes.json").read_text())
    values["offsets"][0] += 0.1
    (tmp_path / "classes.json").write_text(json.dumps(values))
    with pytest.raises(im.InputError, match="was changed after it was written"):
        im.ClassThresholds.load(tmp_path / "classes.json")


def test_the_digest_names_the_fit():
    rows, labels = crowded()
    one, again, other = (fitted(*data, **MIX) for data in ((rows, labels), (rows, labels), (rows[:300], labels[:300])))
    assert one.record()["digest"] == again.record()["digest"] != other.record()["digest"]


# ----- bad input

ROWS, LABELS = crowded(classes=12)


@pytest.mark.parametrize(
    ("rows", "labels", "options", "sentence"),
    [
        (ROWS[:9], np.zeros(9, int), {}, "the gallery has 1 class: at least three are needed"),
        (np.full((9, 4), np.nan), LABELS[:9], {}, "NaN or infinite"),
        (ROWS, LABELS[:-1], {}, "labels has 95 entries, embeddings has 96 rows"),
        (ROWS, np.arange(96), {}, "every class has one enrolled item"),
        (ROWS[LABELS < 5], LABELS[LABELS < 5], {}, "5 classes have two or more enrolled items, too few"),
        (ROWS[:24], LABELS[:24], {}, "24 items to serve as unknown probes, too few to tell FPIR 5%: use fpir=0.21"),
        (ROWS, LABELS, {"shrink": 1.5}, "shrink is 1.5: 'cv' or a number from 0 to 1"),
        (ROWS, LABELS, {"shrink": "auto"}, "shrink is 'auto'"),
        (ROWS, LABELS, {"weights": (0.5,)}, "two numbers are needed"),
        (ROWS, LABELS, {"weights": (0.5, -1)}, "numbers from 0 to 1 are needed"),
        (ROWS, LABELS, {"template": "median"}, "template is 'median'"),
        (ROWS, LABELS, {"unknowns": "few"}, "unknowns is 'few'"),
        (ROWS, LABELS, {"fpir": 0}, "fpir is 0"),
        (np.array([[1.0, 0], [-1, 0], [0, 1], [0, 2], [1, 1]]), [0, 0, 1, 1, 2], MIX, "of class '0' cancel out"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(rows, labels, options, sentence):
    with pytest.raises(im.InputError, match=sentence.replace("(", r"\(")):
        im.ClassThresholds(**options).fit(rows, labels)


def test_templates_of_unknown_classes_are_refused():
    found = fitted(ROWS, LABELS, **MIX)
    with pytest.raises(im.InputError, match="'77' is not an enrolled class"):
        found.augment(ROWS[:1], [77])
    with pytest.raises(im.InputError, match="templates has 5 rows, the gallery 12 templates"):
        found.augment(ROWS[:5])
    with pytest.raises(im.InputError, match="embeddings has 3 dimensions, the gallery of the class thresholds 12"):
        found.augment_queries(np.ones((2, 3)))


def test_a_small_gallery_takes_numbers_and_is_not_judged():
    found = fitted(ROWS[LABELS < 4], LABELS[LABELS < 4], **MIX)
    assert found.verdict_ is None
    assert found.record()["worth_it"] is None
    assert len(found.scores_) == 0
    assert np.any(found.offsets_)
