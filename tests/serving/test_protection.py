"""Keys, Host, Origin, and hostile bodies: every request gets an answer in JSON, and the server goes on."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.datastructures import Headers

from bertwright.serving.protection import Protection
from bertwright.serving.serve_settings import ServeSettings
from serving.servers import running_server

KEY = "a-key"
OPENAI = ("/v1/embeddings", "/v1/models")
PATHS = (
    "/embed",
    "/v1/embeddings",
    "/classify",
    "/tag",
    "/answer",
    "/fill-mask",
    "/",
    "/rerank",
    "/predict",
    "/tokenize",
)
HOSTILE = (
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"inputs":"\xff"}', b'{"inputs":"\\ud800"}', b'{"inputs":"\\udc00 a"}',
    b'{"texts":NaN}', b'{"texts":1e999}', b'{"inputs":' + b"[" * 100_000, b'{"x":' + b'{"a":' * 50_000,
    b'{"inputs":{}}', b'{"inputs":[1]}', b'{"inputs":[[]]}', b'{"inputs":[["a","b","c"]]}', b'{"input":[[1,"a"]]}',
    b'{"texts":["a",null]}', b'{"ids":[99999999999999999999]}', b'{"ids":[-1]}', b'{"inputs":"a","dimensions":0}',
    b'{"inputs":"a","dimensions":99999}', b'{"inputs":"a","model":"../../etc/passwd"}', b'{"texts":"a","top_k":-1}',
    b'{"inputs":"a","pooling":"nix"}', b'{"inputs":"a","prompt_name":"nix"}', b'{"inputs":"a","max_length":9999}',
)  # fmt: skip


@pytest.fixture(scope="module")
def locked(model_folders: Path) -> Iterator[httpx.Client]:
    with running_server([str(model_folders / "pretrained")], api_key=KEY, allow_hosts=("bears.example",),
                        allow_origins=("https://page.example",)) as client:  # fmt: skip
        yield client


def test_every_route_needs_the_key(locked: httpx.Client) -> None:
    described = locked.get("/openapi.json").json()["paths"]
    paths = [(path, method) for path, methods in described.items() for method in methods]
    paths += [(path, "get") for path in ("/", "/health", "/metrics", "/nix", "/openapi.json")]
    with httpx.Client(base_url=locked.base_url) as anyone:
        for path, method in paths:
            for header in ("", "Bearer no", "Basic !", f"Basic {KEY}", "Bearer ключ".encode()):
                reply = anyone.request(method, path, headers={"Authorization": header})
                error = reply.json()
                kind = error["error"]["type"] if path in OPENAI else error["error_type"]
                assert (reply.status_code, kind) == (401, "Validation"), (path, header)
        assert anyone.get("/health", auth=("anyone", KEY)).status_code == 200  # as a browser asks for it
        assert anyone.get("/health", headers={"X-API-Key": KEY}).status_code == 200


def test_host_and_origin_must_be_this_server_or_allowed(locked: httpx.Client) -> None:
    own = f"127.0.0.1:{locked.base_url.port}"
    for host, origin, status in (
        (own, f"http://{own}", 200),
        ("localhost", None, 200),
        ("[::1]:80", None, 200),
        ("bears.example:80", "https://page.example", 200),
        ("evil.example", None, 400),
        ("", None, 400),
        ("[", None, 400),
        (own, "https://evil.example", 403),
        (own, "null", 403),
        (own, "http://[", 403),
    ):
        headers = {"Host": host} | ({"Origin": origin} if origin else {})
        assert locked.get("/health", headers=headers).status_code == status, (host, origin)


def test_hostile_bodies_get_4xx_in_json_and_the_server_goes_on(client: httpx.Client) -> None:
    for path in PATHS:
        for body in HOSTILE:
            check(client, path, body)
    assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200


def test_damaged_bodies_never_fail_the_server(client: httpx.Client) -> None:
    attack(client, 400)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_bodies_never_fail_the_server(client: httpx.Client) -> None:
    attack(client, 100_000)


def attack(client: httpx.Client, number: int) -> None:
    """Send bodies in which bytes are changed, cut or repeated."""
    rng = random.Random(1)
    valid = [b'{"inputs":["the cat","a [MASK]"],"normalize":true}', b'{"texts":["the cat",["a","b"]],"top_k":3}',
             b'{"input":"the cat","encoding_format":"base64"}', b'{"question":"the","context":"cat sat"}',
             b'{"query":"cat","texts":["the","cat"],"documents":["a"]}']  # fmt: skip
    for _ in range(number):
        body = bytearray(rng.choice(valid))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(body) + 1)
            kind = rng.randrange(3)
            if kind == 0:
                body[place : place + 1] = bytes([rng.randrange(256)])
            elif kind == 1:
                del body[place : place + rng.randrange(6)]
            else:
                body[place:place] = rng.choice(
                    [b'"', b"[", b"{", b"\\u", b"\\ud800", b"\x00", b"NaN", b"-", b"1e400", b"\xc3"]
                )
        check(client, rng.choice(PATHS), bytes(body))
    assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200


def check(client: httpx.Client, path: str, body: bytes) -> None:
    reply = client.post(path, content=body)
    assert reply.status_code == 200 or 400 <= reply.status_code < 500, (path, body, reply.text)
    msgspec.json.decode(reply.content)
    if reply.status_code != 200:
        assert reply.headers["content-type"] == "application/json"


def test_broken_connections_do_not_harm_the_server(client: httpx.Client) -> None:
    address = (client.base_url.host, client.base_url.port or 80)
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n"
    for sent in (
        b"",
        b"\x00" * 100,
        b"GET",
        head,
        head + b'{"inputs":',
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    ):
        for half_closed in (False, True):
            with socket.create_connection(address) as connection:
                connection.sendall(sent)
                if half_closed:
                    connection.shutdown(socket.SHUT_WR)
                    connection.settimeout(5)
                    connection.recv(1_000)
    assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200


def test_pages_of_allowed_origins_can_ask_and_read_replies(locked: httpx.Client) -> None:
    """A browser asks without the key, and shows a reply, or an error, only with the header of its origin."""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-own"}
    for origin, status in (("https://page.example", 204), ("https://evil.example", 403)):
        headers = {"Origin": origin, "Authorization": ""}
        reply = locked.options("/embed", headers=headers | asked)
        allowed = reply.headers.get("access-control-allow-origin")
        assert (reply.status_code, allowed) == (status, origin if status == 204 else None)
        if status == 204:
            assert reply.headers["access-control-allow-headers"] == "authorization, x-own"
            assert "POST" in reply.headers["access-control-allow-methods"]
            refused = locked.post("/embed", json={"inputs": "a"}, headers=headers)
            assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, origin)
    reply = locked.post("/embed", json={"inputs": "a"}, headers={"Origin": "https://page.example"})
    assert (reply.status_code, reply.headers["vary"]) == (200, "Origin")
    assert reply.headers["access-control-expose-headers"] == "*"
    assert "access-control-allow-origin" not in locked.get("/health").headers


def test_names_in_capitals_and_keys_of_any_letters_match(model_folders: Path) -> None:
    key = "ключ"
    with running_server([str(model_folders / "vectors")], api_key="x", allow_hosts=("Bears.example",),
                        allow_origins=("https://Page.example",)) as client:  # fmt: skip
        headers = {"Host": "bears.example", "Origin": "https://page.example"}
        assert client.get("/health", headers=headers).status_code == 200
    rules = Protection(None, key)  # type: ignore[arg-type]
    for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key)):
        rules.check(Headers(raw=[(b"host", b"localhost"), (name.encode(), value.encode())]))


@pytest.mark.parametrize(
    "origin",
    ["https://a.example/", "https://a.example/page", "a.example", "https://a.example:443", "https://", "https://a?b"],
)
def test_origins_that_no_browser_sends_are_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ValueError, match="--allow-origins"):
        ServeSettings(("runs/a",), allow_origins=(origin,))


def test_hosts_with_a_port_are_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="--allow-hosts"):
        ServeSettings(("runs/a",), allow_hosts=("a.example:80",))
    ServeSettings(("runs/a",), allow_hosts=("a.example",), allow_origins=("http://a.example:8000", "null"))


def test_errors_of_openai_paths_have_its_form(locked: httpx.Client) -> None:
    for method, path, headers, status in (
        ("POST", "/v1/embeddings", {"Authorization": ""}, 401),
        ("GET", "/v1/models", {"Authorization": ""}, 401),
        ("POST", "/v1/embeddings", {"Host": "evil.example"}, 400),
        ("POST", "/v1/embeddings", {"Origin": "https://evil.example"}, 403),
        ("GET", "/v1/embeddings", {}, 405),
        ("POST", "/v1/chat/completions", {}, 404),
    ):
        reply = locked.request(method, path, headers=headers)
        assert (reply.status_code, [*reply.json()["error"]]) == (status, ["message", "type"]), path
    assert locked.get("/v1/rerank").json()["error_type"] == "Validation"  # Cohere's


def test_a_refused_method_is_answered_with_all_methods_of_the_path(locked: httpx.Client) -> None:
    for path, methods in (("/", "GET, HEAD, POST"), ("/embed", "POST"), ("/health", "GET, HEAD")):
        reply = locked.put(path)
        assert (reply.status_code, reply.headers["allow"]) == (405, methods)


def test_control_characters_of_a_request_are_escaped_in_the_log(
    model_folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bertwright.serving")
    with running_server([str(model_folders / "vectors")], log="texts") as client:
        client.post("/models/%1b[2J%0a9.9.9.9", content=b'{"inputs":\n"\x1b[31m"}')
    (line,) = [record.getMessage() for record in caplog.records if "9.9.9.9" in record.getMessage()]
    assert line.isprintable()
    assert r"\x1b[2J\n9.9.9.9" in line
