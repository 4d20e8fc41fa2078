"""One distance threshold that holds for every class: measure how far embeddings are from it, and train towards it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isomargin import figures, losses, theory
    from isomargin.core.errors import InputError
    from isomargin.data.glyphs import load_glyphs
    from isomargin.data.registry import load_data
    from isomargin.equalize.adapter import Adapter
    from isomargin.equalize.class_thresholds import ClassThresholds
    from isomargin.equalize.cross_validation import EqualizerCV
    from isomargin.equalize.equalizer import Equalizer
    from isomargin.equalize.parts import fit_equalizer, merge_neighbours
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.measure.comparison import compare
    from isomargin.measure.diagnosis import diagnose
    from isomargin.measure.evaluate import evaluate
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.gallery import evaluate_gallery
    from isomargin.measure.gallery_parts import evaluate_gallery_shards, merge_gallery_parts
    from isomargin.measure.pairs.gallery_inputs import make_templates
    from isomargin.measure.pairs.gallery_parts import count_gallery_part
    from isomargin.measure.pairs.gallery_plan import plan_gallery
    from isomargin.measure.pairs.gallery_prepare import prepare_gallery
    from isomargin.measure.pairs.neighbour_parts import find_neighbours, plan_neighbours
    from isomargin.measure.pairs.part_plan import plan_parts
    from isomargin.measure.pairs.parts import count_part
    from isomargin.measure.pairs.prepare import prepare
    from isomargin.measure.parts import evaluate_shards, merge_parts
    from isomargin.measure.scores.consistency import epsilon_opis, opis
    from isomargin.measure.settings import Settings
    from isomargin.measure.trials import evaluate_pairs
    from isomargin.models.embedder import make_model
    from isomargin.report.write import write_report
    from isomargin.thresholds.calibrate import calibrate
    from isomargin.thresholds.canaries import Canaries
    from isomargin.thresholds.card import ThresholdCard, make_card
    from isomargin.thresholds.checking import CardCheck, check_card
    from isomargin.thresholds.choose import choose_threshold
    from isomargin.thresholds.conformal import promise_threshold
    from isomargin.thresholds.transfer import transfer_threshold
    from isomargin.training.adapt import fit_adapter
    from isomargin.training.loop import train
    from isomargin.training.recipe import load_recipe
    from isomargin.training.run import open_run

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Canaries",
    "CardCheck",
    "ClassThresholds",
    "EmbeddingSet",
    "Equalizer",
    "EqualizerCV",
    "Evaluation",
    "InputError",
    "Settings",
    "ThresholdCard",
    "calibrate",
    "check_card",
    "choose_threshold",
    "compare",
    "count_gallery_part",
    "count_part",
    "diagnose",
    "epsilon_opis",
    "evaluate",
    "evaluate_gallery",
    "evaluate_gallery_shards",
    "evaluate_pairs",
    "evaluate_shards",
    "figures",
    "find_neighbours",
    "fit_adapter",
    "fit_equalizer",
    "load_data",
    "load_glyphs",
    "load_recipe",
    "losses",
    "make_card",
    "make_model",
    "make_templates",
    "merge_gallery_parts",
    "merge_neighbours",
    "merge_parts",
    "open_run",
    "opis",
    "plan_gallery",
    "plan_neighbours",
    "plan_parts",
    "prepare",
    "prepare_gallery",
    "promise_threshold",
    "theory",
    "train",
    "transfer_threshold",
    "write_report",
]

# Where each public name lives. They are imported when first used, so that `import isomargin` is quick.
_HOMES = {
    "write_report": "isomargin.report.write",
    "transfer_threshold": "isomargin.thresholds.transfer",
    "promise_threshold": "isomargin.thresholds.conformal",
    "make_card": "isomargin.thresholds.card",
    "compare": "isomargin.measure.comparison",
    "choose_threshold": "isomargin.thresholds.choose",
    "calibrate": "isomargin.thresholds.calibrate",
    "check_card": "isomargin.thresholds.checking",
    "Canaries": "isomargin.thresholds.canaries",
    "CardCheck": "isomargin.thresholds.checking",
    "ThresholdCard": "isomargin.thresholds.card",
    "Adapter": "isomargin.equalize.adapter",
    "ClassThresholds": "isomargin.equalize.class_thresholds",
    "EmbeddingSet": "isomargin.io.embedding_set",
    "Equalizer": "isomargin.equalize.equalizer",
    "EqualizerCV": "isomargin.equalize.cross_validation",
    "Evaluation": "isomargin.measure.evaluation",
    "InputError": "isomargin.core.errors",
    "Settings": "isomargin.measure.settings",
    "diagnose": "isomargin.measure.diagnosis",
    "epsilon_opis": "isomargin.measure.scores.consistency",
    "evaluate": "isomargin.measure.evaluate",
    "evaluate_gallery": "isomargin.measure.gallery",
    "evaluate_gallery_shards": "isomargin.measure.gallery_parts",
    "evaluate_pairs": "isomargin.measure.trials",
    "find_neighbours": "isomargin.measure.pairs.neighbour_parts",
    "fit_adapter": "isomargin.training.adapt",
    "fit_equalizer": "isomargin.equalize.parts",
    "load_data": "isomargin.data.registry",
    "load_glyphs": "isomargin.data.glyphs",
    "load_recipe": "isomargin.training.recipe",
    "make_model": "isomargin.models.embedder",
    "count_gallery_part": "isomargin.measure.pairs.gallery_parts",
    "count_part": "isomargin.measure.pairs.parts",
    "evaluate_shards": "isomargin.measure.parts",
    "make_templates": "isomargin.measure.pairs.gallery_inputs",
    "merge_gallery_parts": "isomargin.measure.gallery_parts",
    "merge_neighbours": "isomargin.equalize.parts",
    "merge_parts": "isomargin.measure.parts",
    "plan_gallery": "isomargin.measure.pairs.gallery_plan",
    "plan_neighbours": "isomargin.measure.pairs.neighbour_parts",
    "plan_parts": "isomargin.measure.pairs.part_plan",
    "prepare": "isomargin.measure.pairs.prepare",
    "prepare_gallery": "isomargin.measure.pairs.gallery_prepare",
    "open_run": "isomargin.training.run",
    "opis": "isomargin.measure.scores.consistency",
    "train": "isomargin.training.loop",
}


def __getattr__(name: str) -> Any:
    from isomargin.core.extras import import_or_explain

    if name in ("figures", "losses", "theory"):
        return import_or_explain(f"isomargin.{name}")
    if name in _HOMES:
        return getattr(import_or_explain(_HOMES[name]), name)
    raise AttributeError(f"module 'isomargin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
