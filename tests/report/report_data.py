"""Sets of embeddings that reports are made of, and the names that would break into a careless one."""

import warnings
from types import SimpleNamespace

import numpy as np

SIZES = np.array([8, 5, 8, 3, 8, 6, 2, 8, 4, 8] * 4 + [1, 1])  # 8 images have 28 positive pairs: a quarter is exact
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "=cmd|' /C calc'!A0",
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1+1)",
    "\t=1+1",
    "\r=1+1",
    "-12.5",
    "&lt;b&gt;",
    "<b>bold</b>",
    '<a href="https://example.org">x</a>',
    "two\nlines",
    "tab\tbetween",
    "bell\x07and\x00null\x1b[31m",
    "\u202egnp.exe",
    "x" * 300,
    "\U0001f469\u200d\U0001f680 \u2728",
    " ",
    "\u200b",
    "__proto__",
    "constructor",
    "${1+1}",
    "{{7*7}}",
    "%{x}",
    "%{customdata}<extra></extra>",
    "<!--",
    "<br>",
    "]]>",
    "'\"`",
    'comma, semicolon; "quoted"',
    "NaN",
    "null",
    "\u2028line separator",
    " =1+1",
    "'=1+1",
    "-Infinity",
)


def clusters(sizes, *, dimensions=16, widths=(0.5, 1.4), seed=0):
    """Vectors around random centres and the class number of each; classes are the wider the higher their number."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres = generator.normal(size=(len(sizes), dimensions))
    spread = np.linspace(*widths, len(sizes))[labels, None]
    return centres[labels] + spread * generator.normal(size=(len(labels), dimensions)), labels


def evaluated(vectors, labels, **settings):
    """Evaluate without repeating the notes that small sets get."""
    import isomargin

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return isomargin.evaluate(vectors, labels, progress=None, **settings)


def written(factory, evaluations, **options):
    """Write a report and return it with what it is about."""
    from isomargin.report.write import write_report

    path = factory.mktemp("report") / "report.html"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        write_report(evaluations, path, **options)
    first = next(iter(evaluations.values()))
    return SimpleNamespace(path=path, evaluations=list(evaluations.values()), evaluation=first, names=list(evaluations))


PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def hostile_examples():
    """What a report shows of a class: two confusions, one of them with pictures, and two of the class's own images."""
    from isomargin.report.examples import ClassExamples, Confusion

    confusions = (
        Confusion(HOSTILE[1], pairs=3, share=0.25, nearest=0.5, thumbnails=(PIXEL, PIXEL)),
        Confusion(HOSTILE[12], pairs=1, share=0.125, nearest=0.75, thumbnails=None),
    )
    return ClassExamples(confusions, thumbnails=(PIXEL, PIXEL))


def galleries():
    """Enrolled items and probes: 30 classes with 12 probes, one with a single probe, one without, and ten unknown."""
    generator = np.random.default_rng(4)
    centres, names = generator.normal(size=(42, 16)), np.array([f"person {number:02}" for number in range(42)])
    enrolled = np.repeat(np.arange(32), 5)
    probes = np.concatenate([np.repeat(np.arange(30), 12), [30], np.repeat(np.arange(32, 42), 12)])
    widths = np.linspace(0.5, 1.2, 42)
    of_enrolled, of_probes = (
        centres[classes] + widths[classes, None] * generator.normal(size=(len(classes), 16))
        for classes in (enrolled, probes)
    )
    return of_enrolled, names[enrolled], of_probes, names[probes]


def gallery_evaluated(*arrays, **settings):
    """Evaluate a gallery without repeating the notes that small sets get."""
    import isomargin

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return isomargin.evaluate_gallery(*arrays, progress=None, **settings)
