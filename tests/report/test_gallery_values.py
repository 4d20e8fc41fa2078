"""What the report carries of a gallery: counts at the slider's stops, confusions, words; and what it refuses."""

import math
import re

import numpy as np
import pytest
from report_data import evaluated, galleries, gallery_evaluated

import isomargin as im
from isomargin.report.contents import contents
from isomargin.report.gallery_values import (
    false_positives,
    gallery_confusions,
    gallery_values,
    identified,
    misidentified,
)
from isomargin.report.slider_stops import threshold_stops


@pytest.mark.parametrize(("listed", "margin"), [(True, 0.0), (True, 0.05), (False, 0.0)])
def test_counts_at_every_stop_are_those_of_the_identification(monkeypatch, listed, margin):
    if not listed:
        monkeypatch.setattr("isomargin.measure.gallery.LISTED", 0)
    evaluation = gallery_evaluated(*galleries(), margin=margin)
    assert (evaluation.method == "exact") == listed
    stops, gallery = threshold_stops(evaluation), evaluation.identification
    hits, wrong, false = (count(gallery, stops.distances) for count in (identified, misidentified, false_positives))
    assert sorted(stops.fpir_presets) == [0.01, 0.05, 0.1]
    assert gallery_values(evaluation, stops)["between_edges"] == (not listed)
    for fpir, stop in stops.fpir_presets.items():
        assert stops.distances[stop] == evaluation.at_fpir(fpir).distance
    for stop in {*range(0, len(stops.distances), 17), *stops.fpir_presets.values()}:
        point = gallery.at(float(stops.distances[stop]))
        assert gallery.known - hits[:, stop].sum() == round(point.fnir * gallery.known)
        assert wrong[stop] == round(point.misidentified * gallery.known)
        assert false[:, stop].sum() == round(point.fpir * gallery.unknown)
        assert false[:, stop] / max(false[:, stop].sum(), 1) == pytest.approx(point.false_positive_share)


def test_confusions_are_the_wrongly_identified_probes_of_both_labels():
    angles = {"a": 0.0, "b": 1.0, "c": 3.0}
    probes = [("a", 0.1), ("a", 0.9), ("b", 0.2), ("b", 1.1), ("c", 3.1), ("z", 0.05), ("z", 2.0)]
    vectors = np.array([[math.cos(angle), math.sin(angle)] for angle in [*angles.values(), *(at for _, at in probes)]])
    labels = [*angles, *(label for label, _ in probes)]
    rates = {"far": (0.2, 0.9), "target_far": 0.2, "target_fpir": 0.5}
    evaluation = gallery_evaluated(vectors[:3], labels[:3], vectors[3:], labels[3:], **rates)
    found = gallery_confusions(evaluation, ["a", "c"], 2 * math.sin(0.25 / 2))
    # One probe of a is identified as b, one of b and one of z as a.
    assert [(each.name, each.pairs, each.share) for each in found["a"].confusions] == [("b", 2, 0.5), ("z", 1, 0.25)]
    assert [each.nearest for each in found["a"].confusions] == pytest.approx([2 * math.sin(0.05), 2 * math.sin(0.025)])
    assert found["c"].confusions == ()


def test_a_gallery_and_all_pairs_are_not_reported_together(plain_data, tmp_path):
    runs = {"pairs": evaluated(*plain_data), "door": gallery_evaluated(*galleries())}
    with pytest.raises(im.InputError, match="pairs compares all pairs of items and door probes with the templates"):
        im.write_report(runs, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_headline_says_how_galleries_differ():
    vectors, labels, probes, probe_labels = galleries()
    noise = np.random.default_rng(9).normal(size=probes.shape)
    runs = {
        "sharp": gallery_evaluated(vectors, labels, probes, probe_labels),
        "blurred": gallery_evaluated(vectors, labels, probes + 2 * noise, probe_labels),
    }
    assert re.search("FNIR at the target FPIR is .* points higher", contents(runs)["headline"])


def test_the_command_reports_a_saved_gallery_with_confusions(run, tmp_path):
    vectors, labels, probes, probe_labels = galleries()
    np.savez(tmp_path / "gallery.npz", embeddings=vectors, labels=labels)
    np.savez(tmp_path / "probes.npz", embeddings=probes, labels=probe_labels)
    saved, page, again = (tmp_path / name for name in ("door.json", "door.html", "again.html"))
    code, *_ = run(
        *("evaluate", tmp_path / "probes.npz", "--gallery", tmp_path / "gallery.npz"), "-o", saved, "--report", page
    )
    assert code == 0
    assert run("report", saved, "-o", again, "--no-intervals")[0] == 0
    for path in (page, again):
        assert '"confusions":[{"name":"person' in path.read_text(encoding="utf-8")
