"""Addresses of stores on the command line: the same numbers as from a file, and never a credential in any text."""

import importlib.util
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import isomargin as im
from isomargin.cli.opening import short_names
from isomargin.io.stores.address import as_path
from isomargin.io.stores.opening import explained
from stores import filled

SECRET = "s3cret-k3y"


@pytest.fixture(scope="module")
def items():
    return filled.drawn()


@pytest.fixture
def folder(tmp_path, monkeypatch, items):
    monkeypatch.chdir(tmp_path)
    im.EmbeddingSet(*items).save("items.npz")
    return tmp_path


def fill(kind, items):
    """Fill a store in the current folder and give its address."""
    if kind == "qdrant":
        qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
        client = qdrant.QdrantClient(path="Store")
        filled.fill_qdrant(client, *items)
        client.close()
        return "qdrant:///Store/items?label=sku&page=100"
    if kind == "lancedb":
        filled.fill_lancedb("Store", *items)
        return "lancedb://Store/items?label=sku&id=id&page=100"
    if kind == "chroma":
        filled.fill_chroma("Store", *items)
        return "chroma:///Store/items?label=sku&page=100"
    fill_file = {"duckdb": filled.fill_duckdb, "sqlite": filled.fill_sqlite}[kind]
    fill_file("Store.db", *items).close()
    return f"{kind}:///Store.db?label=sku&id=id&query=SELECT * FROM items WHERE 4 // 2 > 0 ORDER BY id"


@pytest.mark.parametrize("kind", ["qdrant", "lancedb", "chroma", "duckdb", "sqlite"])
def test_every_store_is_read_by_its_address(folder, items, kind):
    found = im.EmbeddingSet.load(fill(kind, items).replace("4 // 2", "4 / 2" if kind == "sqlite" else "4 // 2"))
    np.testing.assert_array_equal(found.vectors, items[0])
    assert found.labels.tolist() == items[1].tolist()
    assert [int(name) for name in found.ids] == items[2].tolist()


def test_an_address_evaluates_as_the_file_does(folder, run, items):
    code, found, error = run("evaluate", fill("sqlite", items).replace("4 // 2", "4 / 2"), "--json")
    assert code == 0, error
    found, expected = json.loads(found), json.loads(run("evaluate", "items.npz", "--json")[1])
    for values in (found, expected):
        values.pop("diagnosis")  # names the source
    assert found == expected


def test_a_relative_and_an_absolute_folder_are_told_apart(folder, run, items):
    address = fill("sqlite", items)
    absolute = address.replace(":///", f":///{folder}/").replace("4 // 2", "4 / 2")
    assert run("evaluate", absolute)[0] == 0
    code, _, error = run("evaluate", absolute.replace(":////", ":///"))
    assert code == 2
    assert "does not exist: check the path; an absolute path has four slashes after sqlite:" in error


def test_the_query_of_an_address_cannot_write(folder, run, items):
    address = fill("sqlite", items)
    before = (folder / "Store.db").read_bytes()
    code, _, error = run("evaluate", "sqlite:///Store.db?query=DELETE FROM items RETURNING sku AS label, embedding")
    assert code == 2
    assert "readonly" in error
    assert (folder / "Store.db").read_bytes() == before
    assert "Store.db" in address


def test_every_command_that_takes_embeddings_takes_an_address(folder, run, items):
    address = fill("sqlite", items).replace("4 // 2", "4 / 2")
    other = address.replace("ORDER BY id", "ORDER BY id DESC")
    for line in (
        ("threshold", address, "--far", "0.05", "--output", "card.json"),
        ("transfer", "card.json", address),
        ("compare", address, other),
        ("evaluate", address, "--gallery", other),
        ("equalize", address, "--unlabelled", "--neighbours", "10", "--skip", "5"),
        ("templates", address),
        ("canaries", address, "--card", "card.json"),
        ("check", "card.json", address),
    ):
        code, _, error = run(*line)
        assert code == 0, (line, error)
    assert len(short_names([as_path(address), as_path(other)])) == 2


def test_a_card_records_the_address_and_what_was_read(folder, run, items):
    address = fill("sqlite", items).replace("4 // 2", "4 / 2")
    assert run("threshold", address, "--far", "0.05", "--output", "card.json")[0] == 0
    card = im.ThresholdCard.load("card.json")
    (source,) = card.source
    assert source == {"file": address, "sha256": im.EmbeddingSet(*items).sha256}
    direct = im.evaluate(items[0], items[1])
    assert card.threshold == im.make_card(im.choose_threshold(direct, far=0.05, draws=100), direct).threshold


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("qdrant_client", "qdrant"),
        ("lancedb", "lancedb"),
        ("chromadb", "chroma"),
        ("duckdb", "duckdb"),
        ("psycopg", "postgresql"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(run, monkeypatch, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, error = run("evaluate", f"{extra}://localhost/items?{'query=SELECT 1' if extra[0] in 'dp' else ''}")
    assert code == 2
    assert error == f"isomargin: {package} is not installed: pip install 'isomargin[{extra}]'\n"


SECRETS = {
    "a password": f"postgresql://anna:{SECRET}@localhost/shop?query=SELECT 1 AS a",
    "a user name": f"qdrant://{SECRET}@localhost/items?label=sku",
    "an option 'api_key'": f"qdrant://localhost/items?label=sku&api_key={SECRET}",
    "an option 'password'": f"postgresql://localhost/shop?password={SECRET}&query=SELECT 1 AS a",
    "an option 'token'": f"chroma://localhost/items?token={SECRET}",
}


@pytest.mark.parametrize("what", SECRETS)
def test_credentials_in_an_address_are_refused_and_not_repeated(run, tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    for line in (
        ("evaluate", SECRETS[what]),
        ("threshold", SECRETS[what], "--output", "card.json"),
        ("compare", SECRETS[what], SECRETS[what]),
        ("equalize", SECRETS[what], "--unlabelled"),
    ):
        code, output, error = run(*line)
        assert code == 2
        assert SECRET not in output + error
        assert error.count("\n") == 1
        assert what in error
        assert "credentials come from the environment alone, set the environment variable" in error
    assert not list(tmp_path.iterdir())
    with pytest.raises(im.InputError) as raised:
        im.EmbeddingSet.load(SECRETS[what])
    assert SECRET not in repr(raised.value)
    assert SECRET not in repr(as_path(SECRETS[what]))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (f"postgres://anna:{SECRET}@localhost/shop?query=SELECT 1", "did you mean 'postgresql'?"),
        (f"https://anna:{SECRET}@localhost/items.npz", "known are qdrant, chroma"),
        (f"s3://bucket/items.npz?X-Amz-Signature={SECRET}", "known are qdrant, chroma"),
    ],
)
def test_an_address_of_something_else_is_refused_and_not_repeated(run, address, said):
    code, output, error = run("evaluate", address)
    assert code == 2
    assert said in error
    assert SECRET not in output + error


@pytest.mark.parametrize(
    "text",
    [
        "the key {} is not valid",
        "x" * 190 + "the key {} is not valid",  # too long to be shown whole
        "Illegal header value {!r}",
        '{{"error": "{}"}}',
    ],
)
def test_a_secret_in_an_error_is_hidden_however_it_is_written(monkeypatch, text):
    secret = 's3cret "k\\y"'
    monkeypatch.setenv("QDRANT_API_KEY", f"{secret}\n")
    written = json.dumps(secret)[1:-1] if "error" in text else secret
    with pytest.raises(im.InputError) as raised, explained(as_path("qdrant://localhost/items")):
        raise ValueError(text.format(f"{written}\n".encode() if "!r" in text else written))
    assert not any(part in str(raised.value) for part in ("s3", "k\\", 'y"'))


class Points(BaseHTTPRequestHandler):
    """The few calls of qdrant's REST interface that reading makes, for whoever has the key."""

    def log_message(self, *_):
        pass

    def answer(self, result, status=200):
        body = json.dumps({"result": result, "status": "ok", "time": 0.0}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self):
        if self.headers.get("api-key") == self.server.key:
            return True
        self.answer(f"the key {self.headers.get('api-key')} is not valid", 403)  # an engine that says too much
        return False

    def do_GET(self):
        if self.allowed():
            self.answer({"exists": True})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        vectors, labels, ids = self.server.items
        if self.path.endswith("/count"):
            self.answer({"count": len(ids)})
            return
        first = int(np.searchsorted(ids, asked.get("offset") or 0))
        self.server.pages.append(asked["limit"])
        points = [
            {"id": int(ids[i]), "payload": {"sku": str(labels[i])}, "vector": vectors[i].tolist()}
            for i in range(first, min(first + asked["limit"], len(ids)))
        ]
        end = first + asked["limit"]
        self.answer({"points": points, "next_page_offset": int(ids[end]) if end < len(ids) else None})


@pytest.fixture
def server(items):
    served = ThreadingHTTPServer(("127.0.0.1", 0), Points)
    served.items, served.key, served.pages = items, SECRET, []
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()


def test_a_server_of_qdrant_gets_the_key_of_the_environment_and_gives_pages(folder, run, items, server, monkeypatch):
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    address = f"qdrant://127.0.0.1:{server.server_port}/items?label=sku&page=64"
    monkeypatch.setenv("QDRANT_API_KEY", f"{SECRET}\n")  # as a file of a secret may end
    code, output, error = run("threshold", address, "--far", "0.05", "--output", "card.json")
    assert code == 0, error
    assert server.pages == [64] * 4
    written = "".join(path.read_text() for path in (folder / "card.json", folder / "card.txt"))
    assert SECRET not in output + error + written
    assert address in written
    server.key = "another"
    code, output, error = run("evaluate", address)
    assert code == 2
    assert "the key *** is not valid" in error
    assert SECRET not in output + error


def test_a_server_that_does_not_answer_is_one_sentence(run, monkeypatch):
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    monkeypatch.setenv("QDRANT_API_KEY", SECRET)
    code, output, error = run("evaluate", "qdrant://127.0.0.1:9/items?label=sku")
    assert code == 2
    assert error.startswith("isomargin: qdrant://127.0.0.1:9/items?label=sku could not be read (")
    assert SECRET not in output + error
    assert error.count("\n") == 1


def test_a_secret_is_not_sent_to_another_machine_in_the_clear(monkeypatch):
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    asked = []

    def refuse(**options):
        asked.append(options["url"])
        raise ConnectionError("none")

    monkeypatch.setattr(qdrant, "QdrantClient", refuse)
    for key in ("", SECRET):
        monkeypatch.setenv("QDRANT_API_KEY", key)
        for place in ("localhost/i", "db.example:7000/i", "db.example/i?tls=no", "db.example/i?tls=yes"):
            with pytest.raises(im.InputError):
                im.EmbeddingSet.load(f"qdrant://{place}")
    plain = ["http://localhost:6333", "http://db.example:7000", "http://db.example:6333", "https://db.example:6333"]
    assert asked == [*plain, "http://localhost:6333", "https://db.example:7000", *plain[2:]]


@pytest.mark.xdist_group("PostgreSQL")
def test_postgresql_is_read_with_what_the_environment_has(run, items, postgres_server, monkeypatch, tmp_path):
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    monkeypatch.chdir(tmp_path)
    with psycopg.connect(**postgres_server) as connection:
        filled.fill_postgres(connection, *items, name="addressed")
    monkeypatch.setenv("PGHOST", postgres_server["host"])
    monkeypatch.setenv("PGPASSWORD", SECRET)
    address = "postgresql://{user}@/{dbname}?label=sku&id=id&query=SELECT * FROM addressed ORDER BY id".format(
        **{"user": "postgres", "dbname": "postgres"} | postgres_server
    )
    found = im.EmbeddingSet.load(address)
    np.testing.assert_array_equal(found.vectors, items[0])
    assert found.labels.tolist() == items[1].tolist()
    code, output, error = run("evaluate", address.replace("SELECT", "DELETE FROM addressed; SELECT"))
    assert code == 2
    assert SECRET not in output + error
    code, output, error = run("evaluate", address.replace("postgres@", "nobody@"))
    assert code == 2
    assert SECRET not in output + error
    with psycopg.connect(**postgres_server) as connection:
        assert connection.execute("SELECT count(*) FROM addressed").fetchone() == (filled.ROWS,)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("qdrant://localhost", "does not name what to read"),
        ("qdrant://localhost/items?lable=sku", "has an option 'lable': known are label, vector, page, tls"),
        ("duckdb:///file.db", "has no query: add one, as in duckdb:///file.db?query="),
        ("sqlite://host/file.db?query=SELECT 1", "takes a file, not the host 'host'"),
        ("lancedb://nowhere/items?label=sku", "nowhere does not exist: check the path"),
        ("qdrant:///items?label=sku", "meta.json does not exist: check the path"),  # the folder is there
        ("qdrant://localhost/items?page=many", "page is 'many'"),
        ("qdrant://localhost:port/items", "is not an address"),
    ],
)
def test_a_wrong_address_is_one_sentence(run, tmp_path, monkeypatch, address, said):
    monkeypatch.chdir(tmp_path)
    code, _, error = run("evaluate", address)
    assert code == 2
    missing = re.match(r"isomargin: (\w+) is not installed", error)
    if missing and importlib.util.find_spec(missing[1]) is None:
        pytest.skip(f"{missing[1]} is not installed")
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())  # no store was made where there was none


@pytest.mark.parametrize(
    "words", [["ADDRESS", "--memory", "1GB"], ["ADDRESS", "--gallery", "."], [".", "--gallery", "ADDRESS"]]
)
def test_a_store_is_not_read_in_parts(words, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    im.EmbeddingSet(np.eye(4), np.arange(4) // 2).save("items.npy")
    address = "qdrant://127.0.0.1:9/items?label=sku"
    code, _, error = run("evaluate", *(address if word == "ADDRESS" else word for word in words))
    assert code == 2
    assert f"{address} is a vector store, not read in parts" in error
