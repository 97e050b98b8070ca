"""Keys, Host, Origin, and hostile bodies: every request gets an answer in JSON, and the server goes on."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from serving.servers import running_server

KEY = "a-key"
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
                assert (reply.status_code, reply.json()["error_type"]) == (401, "Validation"), (path, header)
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
