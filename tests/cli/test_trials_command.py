"""`evaluate --trials`: the lists that people have, what other commands do with the result, and what is refused."""

import json

import numpy as np
import pandas
import pytest

import isomargin as im
from isomargin.measure.trials import evaluate_trials

CLASSES, ITEMS = 25, 8


@pytest.fixture(scope="module")
def made():
    """Embeddings with ids, and the rows and matches of a list of trials."""
    generator, speakers = np.random.default_rng(0), np.repeat(np.arange(CLASSES), ITEMS)
    vectors = generator.normal(size=(CLASSES, 16))[speakers] + 0.9 * generator.normal(size=(len(speakers), 16))
    labels = np.array([f"speaker{number:02d}" for number in speakers])
    ids = np.array([f'{label}/said_"{row}",_twice.wav' for row, label in enumerate(labels)])
    rows = np.stack(np.triu_indices(len(labels), 1), axis=1)
    same = labels[rows[:, 0]] == labels[rows[:, 1]]
    kept = same | (generator.random(len(rows)) < 0.1)
    return vectors, labels, ids, rows[kept], same[kept]


@pytest.fixture
def folder(made, tmp_path):
    vectors, labels, ids, rows, same = made
    im.EmbeddingSet(vectors, labels, ids).save(tmp_path / "voices.npz")
    np.savez(tmp_path / "unlabelled.npz", embeddings=vectors, ids=ids)
    np.savez(tmp_path / "nameless.npz", embeddings=vectors, labels=labels)
    lines = [f"{int(match)} {ids[first]} {ids[second]}" for match, (first, second) in zip(same, rows, strict=True)]
    (tmp_path / "trials.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = (unit[rows[:, 0]] * unit[rows[:, 1]]).sum(axis=1)
    pandas.DataFrame({
        "unique_id_l": ids[rows[:, 0]],
        "unique_id_r": ids[rows[:, 1]],
        "clerical_match_score": np.where(same, 0.8, 0.1),
        "similarity": similarity,
        "source_l": labels[rows[:, 0]],
        "source_r": labels[rows[:, 1]],
    }).to_csv(tmp_path / "splink.csv", index=False)  # fmt: skip
    return tmp_path


def scores_of(run, *arguments):
    code, output, error = run("evaluate", *arguments, "--json")
    assert code == 0, error
    return json.loads(output)["scores"]


def except_for_the_last_digit(scores):
    # With older versions of NumPy that of minCllr depends on where in memory an array begins.
    return scores | {"min_cllr": pytest.approx(scores["min_cllr"], rel=1e-14)}


def test_every_kind_of_list_gives_the_scores_of_the_same_trials(made, folder, run):
    vectors, labels, ids, rows, same = made
    expected = except_for_the_last_digit(evaluate_trials(vectors, rows, same, labels[rows]).scores())
    sentences = pandas.DataFrame(
        {"sentence1": ids[rows[:, 0]], "sentence2": ids[rows[:, 1]], "label": same.astype(int)}
    )
    sentences.to_csv(folder / "sentences.csv", index=False)
    sentences.to_csv(folder / "sentences.tsv", index=False, sep="\t", quoting=3)
    sentences.rename(columns={"label": "score"}).assign(score=np.where(same, 4.2, 1.0)).to_parquet(
        folder / "sts.parquet"
    )
    pandas.read_csv(folder / "splink.csv").to_parquet(folder / "splink.parquet")
    words = np.where(same, "target", "nontarget")
    lines = [f"{ids[a]} {ids[b]} {word}" for word, (a, b) in zip(words, rows, strict=True)]
    (folder / "kaldi.txt").write_text("\n".join(lines), encoding="utf-8")
    for name in ("trials.txt", "kaldi.txt", "sentences.csv", "sentences.tsv", "splink.csv", "splink.parquet"):
        assert scores_of(run, folder / "voices.npz", "--trials", folder / name) == expected, name
    assert scores_of(run, folder / "voices.npz", "--trials", folder / "sts.parquet", "--match-at", 3) == expected


def test_groups_come_from_the_labels_or_from_columns_and_are_absent_without_either(folder, run):
    by_label = except_for_the_last_digit(scores_of(run, folder / "voices.npz", "--trials", folder / "splink.csv"))
    columns = ("--groups", "source_l,source_r")
    assert scores_of(run, folder / "unlabelled.npz", "--trials", folder / "splink.csv", *columns) == by_label
    table = pandas.read_csv(folder / "splink.csv")
    table.rename(columns={"source_l": "group_l", "source_r": "group_r"}).to_csv(folder / "named.csv", index=False)
    assert scores_of(run, folder / "unlabelled.npz", "--trials", folder / "named.csv") == by_label
    alone = scores_of(run, folder / "unlabelled.npz", "--trials", folder / "splink.csv")
    assert "opis" not in alone
    assert alone["eer"] == by_label["eer"]


def test_scores_of_the_list_need_no_embeddings(folder, run):
    arguments = ("--trials", folder / "splink.csv", "--groups", "source_l,source_r")
    by_score = scores_of(run, *arguments, "--score-column", "similarity")
    by_embedding = scores_of(run, folder / "voices.npz", "--trials", folder / "splink.csv")
    for name in ("eer", "auc", "min_dcf", "min_cllr", "far", "frr"):
        assert by_score[name] == pytest.approx(by_embedding[name], rel=1e-9), name
    assert by_score["cllr"] == pytest.approx(by_embedding["cllr"], rel=1e-6)
    assert by_score["target_score"] == pytest.approx(1 - by_embedding["target_distance"] ** 2 / 2)
    costly = scores_of(run, *arguments, "--score-column", "similarity", "--prior", 0.5, "--cost-false-accept", 2)
    assert costly["min_dcf"] < by_score["min_dcf"]


def test_the_table_has_intervals_and_nothing_that_a_list_cannot_give(folder, run):
    code, output, _ = run("evaluate", folder / "voices.npz", "--trials", folder / "trials.txt", "--intervals")
    assert code == 0
    lines = {line.strip().split("  ")[0]: line for line in output.splitlines()}
    assert "to" in lines["equal error rate"]
    assert "minDCF (prior 1%, costs 1 and 1)" in lines
    assert "Cllr of calibrated scores (groups held out)" in lines
    assert "intervals for other groups of the same kind" in output
    assert "recall" not in output
    assert "retrieval" not in output
    code, output, _ = run("evaluate", "--trials", folder / "splink.csv", "--score-column", "similarity", "--intervals")
    assert code == 0
    assert "other trials of the same kind" in output
    assert "OPIS" not in output
    assert "score at least" in output


@pytest.fixture
def saved(folder, run):
    """Evaluations of trials: by embeddings, by scores with groups, and by scores alone."""
    scores = ("evaluate", "--trials", folder / "splink.csv", "--score-column", "similarity")
    assert (
        run("evaluate", folder / "voices.npz", "--trials", folder / "trials.txt", "-o", folder / "distance.json")[0]
        == 0
    )
    assert run(*scores, "--groups", "source_l,source_r", "-o", folder / "score.json")[0] == 0
    assert run(*scores, "-o", folder / "alone.json")[0] == 0
    return folder


def test_thresholds_of_trials_have_cards(saved, run):
    for name in ("distance", "score", "alone"):
        assert run("threshold", saved / f"{name}.json", "--far", 0.05, "-o", saved / f"{name}-card.json")[0] == 0
    cards = {name: im.ThresholdCard.load(saved / f"{name}-card.json") for name in ("distance", "score", "alone")}
    assert {card.comparison for card in cards.values()} == {"trials"}
    assert cards["score"].accept_when == {"score": "at least"}
    assert cards["score"].threshold["score"] == pytest.approx(
        cards["distance"].threshold["cosine_similarity"], abs=1e-3
    )
    assert cards["score"].distance == -cards["score"].threshold["score"]
    assert "trials in 25 groups" in cards["score"].summary()
    assert "groups" not in cards["alone"].summary()
    code, output, _ = run("transfer", saved / "score-card.json", saved / "alone.json", "--json")
    assert code == 0
    rows = json.loads(output)["sets"]
    assert rows[1]["far"] == rows[0]["far"]
    code, output, _ = run("threshold", saved / "score.json", "--score", 0.4, "--json")
    assert code == 0
    assert json.loads(output)["threshold"] == {"score": 0.4}
    assert "Nothing is promised for unseen groups" in cards["score"].summary()
    code, output, _ = run("threshold", saved / "score.json", "--far", 0.1, "--unseen")
    assert code == 0
    assert "the expected FAR of an unseen group is at most 10%" in output
    assert "its negative trials are drawn as those of the calibration groups were" in output
    assert "class" not in output
    code, output, _ = run("transfer", saved / "score-card.json", saved / "score.json")
    assert output.splitlines()[1].split()[:2] == ["set", "groups"]


def test_models_on_the_same_list_are_compared(saved, made, run):
    vectors, labels, _, rows, same = made
    noise = np.random.default_rng(1).normal(size=vectors.shape)
    evaluate_trials(vectors + noise, rows, same, labels[rows]).save(saved / "noisy.json")
    code, output, error = run("compare", saved / "distance.json", saved / "noisy.json")
    assert code == 0, error
    assert "noisy's OPIS" in output
    assert "EER is" in output
    assert "25 groups, paired bootstrap over groups" in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("report {saved}/score.json -o {saved}/report.html", "which a report cannot show"),
        ("figure utility_curves {saved}/score.json -o {saved}/curves.svg", "which figures cannot show"),
        ("threshold {saved}/score.json --distance 0.5", "give --score"),
        ("threshold {saved}/score.json --cosine 0.5", "give --score"),
        ("threshold {saved}/distance.json --score 0.5", "give --distance"),
        ("threshold {saved}/score.json --calibrate platt", "fit a map to the scores themselves"),
        ("threshold {saved}/alone.json --far 0.1 --unseen", "a promise is about unseen groups"),
        ("compare {saved}/alone.json {saved}/alone2.json", "these trials have no groups"),
        ("transfer {saved}/score-card.json {saved}/distance.json", "on different scales"),
        ("transfer {saved}/distance.json {saved}/pairs.json", "compares all pairs of items"),
        ("threshold {saved}/score.json --far 0.01 --unseen", "with 25 groups that have negative pairs no less than"),
        ("check {saved}/score-card.json {saved}/voices.npz", "evaluate a new list"),
        ("check {saved}/score-card.json {saved}/voices.npz --gallery {saved}/voices.npz", "evaluate a new list"),
        ("canaries {saved}/voices.npz --card {saved}/score-card.json", "so it needs no canaries"),
    ],
)
def test_what_does_not_carry_over_is_said_in_one_sentence(saved, made, run, arguments, sentence):
    (saved / "alone2.json").write_bytes((saved / "alone.json").read_bytes())
    im.evaluate(made[0], made[1]).save(saved / "pairs.json")
    run("threshold", saved / "score.json", "-o", saved / "score-card.json")
    before = sorted(saved.iterdir())
    code, output, error = run(*arguments.format(saved=saved).split())
    assert (code, output) == (2, "")
    assert sentence in error
    assert error.count("\n") == 1
    assert sorted(saved.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "{f}/voices.npz --trials {f}/missing.txt",
            "names 4 ids that {f}/voices.npz does not have, such as 'x', 'a', 'y'",
        ),
        ("{f}/nameless.npz --trials {f}/trials.txt", "has no ids, by which trials name their items"),
        ("{f}/voices.npz --trials {f}/short.txt", "has 2 words in line 2"),
        ("{f}/voices.npz --trials {f}/words.txt", "does not start with 1 or 0 in line 2"),
        ("{f}/voices.npz --trials {f}/other.csv", "has no columns of names, sentence1 and sentence2"),
        ("{f}/voices.npz --trials {f}/voices.npz", "a list of trials is .txt, .csv, .tsv or .parquet"),
        ("{f}/voices.npz --trials {f}/nothing.txt", "nothing.txt"),
        ("--trials {f}/nan.csv --score-column similarity", "2 rows without a finite number in column 'similarity'"),
        ("--trials {f}/splink.csv --score-column cosine", "has no column 'cosine' for --score-column"),
        (
            "--trials {f}/splink.csv --score-column similarity --groups language",
            "has no column 'language' for --groups",
        ),
        ("{f}/voices.npz --trials {f}/sts.csv", "say with --match-at from which value a pair matches"),
        ("--trials {f}/splink.csv", "give a file of embeddings, or --score-column"),
        ("{f}/voices.npz --trials {f}/splink.csv --score-column similarity", "replaces the embeddings"),
        ("{f}/voices.npz --groups source_l", "give --trials, or leave them out"),
        ("{f}/voices.npz --trials {f}/trials.txt --pairs sampled", "--pairs does not apply to a list of trials"),
        ("{f}/voices.npz --trials {f}/trials.txt --report {f}/report.html", "--report does not apply"),
        ("--json", "there is nothing to evaluate"),
    ],
)
def test_bad_lists_are_refused_in_one_sentence_and_nothing_is_written(folder, run, arguments, sentence):
    (folder / "missing.txt").write_text("1 x a\n0 x y\n1 x z\n")
    (folder / "short.txt").write_text("1 a b\n0 a\n")
    (folder / "words.txt").write_text("1 a b\nmaybe a c\n")
    (folder / "other.csv").write_text("left,right,label\na,b,1\n")
    (folder / "sts.csv").write_text("sentence1,sentence2,score\na,b,4.5\na,c,0\n")
    (folder / "nan.csv").write_text("label,similarity\n1,0.5\n0,\n1,0.7\n0,nan\n")
    before = sorted(folder.iterdir())
    code, output, error = run("evaluate", *arguments.format(f=folder).split(), "-o", folder / "result.json")
    assert (code, output) == (2, "")
    assert sentence.format(f=folder) in error
    assert error.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_repeated_ids_are_refused_if_they_name_different_embeddings(folder, run):
    same_twice, other_twice = np.eye(4)[[0, 0, 1, 2]], np.eye(4)[[0, 1, 1, 2]]
    (folder / "list.txt").write_text("1 a b\n0 a c\n0 b c\n")
    rates = ("--far", 0.5, 0.9, "--target-far", 0.5, "--distances", 0.1, 1.9)
    for vectors, expected in ((same_twice, 0), (other_twice, 2)):
        np.savez(folder / "repeated.npz", embeddings=vectors, ids=np.array(["a", "a", "b", "c"]))
        code, _, error = run("evaluate", folder / "repeated.npz", "--trials", folder / "list.txt", *rates)
        assert code == expected, error
    assert "different embeddings in rows 0 and 1 (from 0) with the id 'a'" in error
