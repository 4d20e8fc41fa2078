"""The code of snippets, by search engine: a search with one threshold, and the searches that serve equalized vectors.

Words in capital letters are filled in by `snippets.py`. `index`, `client`, `table`, `collection` and `connection` are
the user's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

UNIT = """    query = np.asarray(embedding, dtype=np.float32)
    query = query / np.linalg.norm(query)"""
ANY_LENGTH = """    query = np.asarray(embedding, dtype=np.float32)"""


@dataclass(frozen=True)
class Metric:
    """How an engine compares vectors."""

    name: str
    """What the engine calls it."""
    convention: str
    """The convention of a card that has the threshold on this scale."""
    words: str
    """What the engine returns, in words."""


@dataclass(frozen=True)
class Engine:
    """A search engine."""

    title: str
    """Its name in sentences."""
    needs: str
    """What the snippet expects, with NAME and METRIC."""
    metrics: Mapping[str, Metric]
    """By name: cosine, inner_product and l2; the first is the default."""
    search: str
    """Lines of `matches` after the query was prepared, with NAME, METRIC and THRESHOLD."""
    nearest: str
    """Functions `nearest` and `accepted` by inner product, for equalized similarities."""
    imports: str = ""
    """Further imports of both."""
    exact: str = ""
    """A note on what the search may miss."""
    limited: bool = True
    """Whether a search returns at most a given number of items."""
    tested: bool = True
    """Whether the snippet was run against the real engine."""


def _metrics(cosine: Metric | None, inner_product: Metric, l2: Metric) -> Mapping[str, Metric]:
    known = {"cosine": cosine, "inner_product": inner_product, "l2": l2}
    return MappingProxyType({name: metric for name, metric in known.items() if metric is not None})


SIMILARITY, PRODUCT, SQUARED = "the cosine similarity", "the inner product", "the squared L2 distance"
COSINE_DISTANCE, PRODUCT_DISTANCE = "one minus the cosine similarity", "one minus the inner product"

FAISS = Engine(
    title="faiss",
    needs="index: a faiss.METRIC",
    metrics=_metrics(
        None, Metric("IndexFlatIP", "inner_product", PRODUCT), Metric("IndexFlatL2", "squared_l2", SQUARED)
    ),
    search="""    _, scores, ids = index.range_search(query[None], THRESHOLD)
    return sorted(zip(ids.tolist(), scores.tolist()), key=lambda match: match[1], reverse=DESCENDING)""",
    nearest="""def nearest(query, count):
    products, ids = index.search(query[None], count)
    return list(zip(ids[0].tolist(), products[0].tolist()))


def accepted(query, threshold):  # a call has one threshold, so queries go one at a time
    return index.range_search(query[None], threshold)[2].tolist()""",
    limited=False,
    exact="A flat index compares all items; others may miss matches.",
)

QDRANT = Engine(
    title="qdrant",
    needs='client: a QdrantClient with the collection "NAME", whose distance is METRIC',
    metrics=_metrics(
        Metric("Cosine", "cosine_similarity", SIMILARITY),
        Metric("Dot", "inner_product", PRODUCT),
        Metric("Euclid", "l2", "the L2 distance"),
    ),
    search="""    found = client.query_points("NAME", query=query.tolist(), limit=limit, score_threshold=THRESHOLD)
    return [(point.id, point.score) for point in found.points]""",
    nearest="""def nearest(query, count, least=None):
    points = client.query_points("NAME", query=query.tolist(), limit=count, score_threshold=least).points
    return [(point.id, point.score) for point in points]


def accepted(query, threshold, limit=1000):
    return [item for item, _ in nearest(query, limit, threshold)]""",
    exact="An HNSW index may miss matches.",
)

LANCEDB = Engine(
    title="LanceDB",
    needs='table: a table of LanceDB with the columns "id" and "vector"',
    metrics=_metrics(
        Metric("cosine", "cosine_distance", COSINE_DISTANCE),
        Metric("dot", "cosine_distance", PRODUCT_DISTANCE),
        Metric("l2", "squared_l2", SQUARED),
    ),
    search="""    found = table.search(query).distance_type("METRIC").distance_range(upper_bound=THRESHOLD).limit(limit)
    return [(row["id"], row["_distance"]) for row in found.select(["id", "_distance"]).to_list()]""",
    nearest="""def nearest(query, count, farthest=None):
    search = table.search(query).distance_type("dot").distance_range(upper_bound=farthest).limit(count)
    return [(row["id"], 1 - row["_distance"]) for row in search.select(["id", "_distance"]).to_list()]


def accepted(query, threshold, limit=1000):  # its distance is one minus the inner product
    return [item for item, _ in nearest(query, limit, 1 - threshold)]""",
    exact="Without an index LanceDB compares all items; an index may miss matches.",
)

CHROMA = Engine(
    title="Chroma",
    needs='collection: a collection of Chroma with the space "METRIC"',
    metrics=_metrics(
        Metric("cosine", "cosine_distance", COSINE_DISTANCE),
        Metric("ip", "cosine_distance", PRODUCT_DISTANCE),
        Metric("l2", "squared_l2", SQUARED),
    ),
    search="""    found = collection.query(query_embeddings=[query.tolist()], n_results=limit, include=["distances"])
    return [match for match in zip(found["ids"][0], found["distances"][0]) if match[1] <= THRESHOLD]""",
    nearest="""def nearest(query, count):
    found = collection.query(query_embeddings=[query.tolist()], n_results=count, include=["distances"])
    return [(item, 1 - distance) for item, distance in zip(found["ids"][0], found["distances"][0])]


def accepted(query, threshold, limit=1000):  # its distance is one minus the inner product
    return [item for item, product in nearest(query, limit) if product >= threshold]""",
    exact="Chroma's HNSW index may miss matches.",
)

PGVECTOR = Engine(
    title="pgvector",
    needs="connection: psycopg.connect(...) to a database with the table NAME (id, embedding vector)",
    metrics=_metrics(
        Metric("embedding <=> %(query)s::vector", "cosine_distance", COSINE_DISTANCE),
        Metric("-(embedding <#> %(query)s::vector)", "inner_product", PRODUCT),
        Metric("embedding <-> %(query)s::vector", "l2", "the L2 distance"),
    ),
    search='''    asked = """
        SELECT id, METRIC AS score FROM NAME
        WHERE METRIC COMPARED THRESHOLD ORDER BY score DIRECTION
    """
    return connection.execute(asked, {"query": str(query.tolist())}).fetchall()''',
    nearest="""def nearest(query, count):  # <#> is the negative inner product
    asked = "SELECT id, -(embedding <#> %(x)s::vector) FROM NAME ORDER BY embedding <#> %(x)s::vector LIMIT %(count)s"
    return connection.execute(asked, {"x": str(query.tolist()), "count": count}).fetchall()


def accepted(query, threshold):
    asked = "SELECT id FROM NAME WHERE embedding <#> %(x)s::vector <= %(most)s"
    return [item for (item,) in connection.execute(asked, {"x": str(query.tolist()), "most": -float(threshold)})]""",
    limited=False,
    exact="It compares all items: PostgreSQL uses an index of pgvector only for ORDER BY with LIMIT.",
)

MILVUS = Engine(
    title="Milvus",
    needs='client: a MilvusClient with the collection "NAME", whose metric type is METRIC',
    metrics=_metrics(
        Metric("COSINE", "cosine_similarity", SIMILARITY),
        Metric("IP", "inner_product", PRODUCT),
        Metric("L2", "squared_l2", SQUARED),
    ),
    search="""    within = {"metric_type": "METRIC", "params": {"radius": THRESHOLD}}
    found = client.search("NAME", data=[query.tolist()], limit=limit, search_params=within)
    return [(match["id"], match["distance"]) for match in found[0]]""",
    nearest="""def nearest(query, count, **within):
    how = {"metric_type": "IP", "params": within}
    found = client.search("NAME", data=[query.tolist()], limit=count, search_params=how)
    return [(match["id"], match["distance"]) for match in found[0]]


def accepted(query, threshold, limit=1000):
    return [item for item, _ in nearest(query, limit, radius=float(threshold))]""",
    exact="An approximate index may miss matches.",
)

REDIS = Engine(
    title="Redis",
    needs='client: redis.Redis(...) with the search index "NAME" of a field "embedding": VECTOR, FLOAT32, METRIC',
    metrics=_metrics(
        Metric("COSINE", "cosine_distance", COSINE_DISTANCE),
        Metric("IP", "cosine_distance", PRODUCT_DISTANCE),
        Metric("L2", "squared_l2", SQUARED),
    ),
    search="""    asked = Query("@embedding:[VECTOR_RANGE $radius $query]=>{$YIELD_DISTANCE_AS: distance}")
    asked = asked.sort_by("distance").return_fields("distance").paging(0, limit).dialect(2)
    found = client.ft("NAME").search(asked, {"radius": THRESHOLD, "query": query.tobytes()})
    return [(document.id, float(document.distance)) for document in found.docs]""",
    nearest="""def search(asked, count, **values):
    asked = Query(asked).sort_by("distance").return_fields("distance").paging(0, count).dialect(2)
    found = client.ft("NAME").search(asked, values).docs
    return [(document.id, 1 - float(document.distance)) for document in found]


def nearest(query, count):
    return search(f"*=>[KNN {count} @embedding $query AS distance]", count, query=query.tobytes())


def accepted(query, threshold, limit=1000):  # its distance is one minus the inner product
    asked = "@embedding:[VECTOR_RANGE $radius $query]=>{$YIELD_DISTANCE_AS: distance}"
    found = search(asked, limit, radius=1 - float(threshold), query=query.tobytes())
    return [item for item, _ in found]""",
    imports="from redis.commands.search.query import Query\n",
    exact="An HNSW index may miss matches.",
    tested=False,
)

ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        "faiss": FAISS,
        "qdrant": QDRANT,
        "lancedb": LANCEDB,
        "chroma": CHROMA,
        "pgvector": PGVECTOR,
        "milvus": MILVUS,
        "redis": REDIS,
    }
)
"""The engines by the names that `snippet` takes."""

EQUALIZED = '''equalizer = im.Equalizer.load("EQUALIZER")  # digest DIGEST


def matches(embedding, own_id=None):
    """Return the ids of the accepted items; own_id is the id of a query that is in the index itself."""
    needed = equalizer.skip_ + equalizer.neighbours_
    found = nearest(equalizer.transform_neighbour_queries([embedding])[0], needed + 1)
    offsets = equalizer.offsets_from_search([[product for item, product in found if item != own_id][:needed]])
    threshold = equalizer.inner_product_thresholds(THRESHOLD, offsets)[0]
    return [item for item in accepted(equalizer.transform_queries([embedding])[0], threshold) if item != own_id]'''
"""How equalized similarities are served; docs/equalize-serving.md explains it."""
