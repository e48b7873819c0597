"""Send 3,500 requests to `cosent serve` that no client should send, and watch it and their neighbours.

python -m lab.benchmarks.fuzz_serve --output lab/results/fuzz_serve.json

Bodies of wrong types, encodings, depths and numbers, methods, keys, fifty clients at a time, requests that are cut
short, connections that are never finished, bodies of 40 MB, and as much work as a request may ask for, beside short
requests. An answer is right if it is the status and the JSON that the page promises, and vectors are those that the
server gives to the text alone; everything else is a fault.
"""

import argparse
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from cosent.comparing.document import markdown_table
from cosent.errors import messages_for_users
from cosent.models.cross_encoder import CrossEncoder
from lab.benchmarks.common import save

KEY = "secret"
Request = Callable[[], tuple[int, bytes]]
PATHS = ("/v1/embeddings", "/rerank", "/v1/rerank", "/similarity")
OUTCOMES = ("right", "refused in words", "busy (503)", "connection ended", "wrong", "error 5xx", "no answer")
WEIRD = [
    *("", " ", "　", "\n", "\0", "a\0b", "\u200b", "\ufeff", "\u0301", "\ue000", "\U0010ffff", "怎么还款", "x" * 19999),
    *(
        "好" * 20000,
        "好" * 20001,
        "🙂" * 500,
        "\u202e逆",
        "<script>alert(1)</script>",
        "=cmd|' /C calc'!A0",
        "[CLS] [SEP]",
    ),
    *("\r\n\r\n", "%00", "../../etc/passwd", "{{7*7}}", "\u2028", "a" * 513, "\x7f", "\x1b[31m"),
]
NO_TEXTS = [None, 1, 1.5, True, [], {}, ["a"], [["a", "b"]], {"a": 1}, float("nan"), float("-inf"), -1, 10**400]
FIELDS = [
    "input",
    "model",
    "pairs",
    "query",
    "texts",
    "documents",
    "top_n",
    "dimensions",
    "encoding_format",
    "__class__",
]
WORDS = [
    "怎么还款",
    "如何还款",
    "借呗怎么还不了",
    "花呗可以提前还款吗",
    *(f"第{n}个问题怎么办{n * 7}" for n in range(60)),
]


class Server:
    """A running server, and what it did so far."""

    def __init__(self, port: int, process: psutil.Process):
        self.port, self.process = port, process
        self.outcomes: dict[str, Counter] = {}

    def ask(self, path: str, body: Any = None, method: str = "POST", headers: dict | None = None, timeout: float = 120):
        """The status and the body of an answer; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = body if isinstance(body, bytes | None) else json.dumps(body, ensure_ascii=False).encode()
        given = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"} | (headers or {})
        try:
            connection.request(method, path, sent, given)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def note(self, kind: str, outcome: str, *of: Any) -> None:
        self.outcomes.setdefault(kind, Counter())[outcome] += 1
        if outcome in OUTCOMES[4:]:
            print(kind, outcome, *(str(one)[:200] for one in of), flush=True)

    def judge(self, kind: str, request: Request, right=lambda answer: True, method="POST") -> None:
        """Sends a request and records the outcome; `right` checks the JSON of an answer 200."""
        try:
            status, body = request()
            answer = (
                json.loads(body, parse_constant=refuse)
                if method != "HEAD"
                else {"error": {"message": "", "code": status}}
            )
        except (OSError, http.client.HTTPException) as error:
            return self.note(kind, "no answer", repr(error))
        except ValueError as error:
            return self.note(kind, "wrong", error, body)
        if status == 200:
            return self.note(kind, "right" if right(answer) else "wrong", body)
        worded = isinstance(answer, dict) and {"message", "code"} <= answer.get("error", {}).keys()
        outcome = "busy (503)" if status == 503 else "error 5xx" if status >= 500 else "refused in words"
        self.note(kind, outcome if worded else "wrong", status, body)

    @contextmanager
    def watched(self, request: Callable[[], Any], pause: float) -> Iterator[list[float]]:
        """Repeats a request beside what is done inside, and lists how many seconds each took."""
        seconds: list[float] = []
        done = threading.Event()

        def repeat():
            while not done.is_set():
                started = time.monotonic()
                request()
                seconds.append(time.monotonic() - started)
                time.sleep(pause)

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield seconds
        finally:
            done.set()
            thread.join()


def refuse(name: str):
    raise ValueError(f"{name} is no JSON")


@contextmanager
def serving(folder: str) -> Iterator[Server]:
    """`cosent serve` of `similar`, reranking by a cross-encoder with a new head."""
    CrossEncoder.from_pretrained("mini", num_labels=1, max_length=128).save_pretrained(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-m", "cosent", "serve", "--model", "similar", "--rerank", folder, "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.DEVNULL, env=os.environ | {"COSENT_API_KEY": KEY}
    )
    try:
        server = Server(port, psutil.Process(process.pid))
        while True:
            try:
                server.ask("/health", method="GET")
                break
            except OSError:
                if process.poll() is not None:
                    raise
                time.sleep(0.5)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=60)


def any_text(draw: random.Random) -> Any:
    kind = draw.random()
    if kind < 0.6:
        return draw.choice(WEIRD)
    if kind < 0.8:
        ranges = ((32, 127), (0x4E00, 0x9FFF), (0, 0xD800), (0xE000, 0x10FFFF))
        return "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(draw.randrange(1, 80)))
    return draw.choice(NO_TEXTS)


def any_json(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if depth > 3 or kind < 0.5:
        return any_text(draw)
    if kind < 0.75:
        return [any_json(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {draw.choice(FIELDS): any_json(draw, depth + 1) for _ in range(draw.randrange(4))}


def nearly_right(draw: random.Random, path: str) -> dict:
    """A body with the fields of its path, and anything in them."""
    some = [any_text(draw) for _ in range(draw.randrange(6))]
    if path == "/v1/embeddings":
        dimensions = draw.choice([None, 256, 31, 0, -1, "32", 1e9, True])
        form = draw.choice(["float", "base64", "hex", None])
        return {"input": draw.choice([any_text(draw), some]), "encoding_format": form, "dimensions": dimensions}
    if path == "/similarity":
        return {
            "pairs": [[one, any_text(draw)] for one in some] + draw.choice([[], [["a"]], [["a", "b", "c"]], ["ab"]])
        }
    top = draw.choice([None, 0, 1, 3, 10**30, -1, "2", 1.5])
    return {"query": any_text(draw), draw.choice(["texts", "documents"]): some, "top_n": top}


def any_body(draw: random.Random, path: str) -> bytes:
    kind = draw.random()
    if kind < 0.45:
        return json.dumps(nearly_right(draw, path), ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    if kind < 0.6:
        return json.dumps(any_json(draw)).encode("utf-8", "surrogatepass")
    if kind < 0.68:
        return draw.choice([b'{"input": "\\ud800"}', b'{"pairs": [["a", "\\udfff"]]}', b'{"input": ["a"], "input": 3}'])
    if kind < 0.72:
        return b'{"input": ' + b"[" * draw.choice([50, 5000, 100_000]) + b"]" * 10 + b"}"
    if kind < 0.77:
        return '{"input": "怎么"}'.encode(draw.choice(["utf-16", "gb18030", "utf-8-sig"]))
    if kind < 0.83:
        return draw.randbytes(draw.randrange(200))
    if kind < 0.87:
        return b'{"input": ' + b"9" * draw.choice([10, 4301, 100_000]) + b"}"
    body = bytearray(json.dumps({"input": ["怎么还款"] * 3}).encode())
    for _ in range(3):
        body[draw.randrange(len(body))] = draw.randrange(256)
    return bytes(body)


def malformed(server: Server, draw: random.Random, count: int) -> None:
    types = [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=utf-16",
        "",
    ]
    for _ in range(count):
        path, method = draw.choice(PATHS), draw.choice(["POST"] * 12 + ["GET", "PUT", "HEAD", "OPTIONS"])
        headers = {"Content-Type": draw.choice(types)} if draw.random() < 0.1 else {}
        body = any_body(draw, path)
        server.judge("malformed", lambda: server.ask(path, body, method, headers), method=method)  # noqa: B023


def keys(server: Server, count: int) -> None:
    """Requests with other keys, which must be refused, to every path but /health."""
    wrong = ["", "Bearer ", "Bearer no", "Bearer secre", "Bearer secret2", "Basic c2VjcmV0", "Bearer \xff", "Bearer"]
    for number in range(count):
        path = ("/similarity", "/openapi.json", "/", "/docs", "/v1/models", "/../health")[number % 6]
        headers = {"Authorization": wrong[number % len(wrong)]}
        status, body = server.ask(path, {"pairs": [["a", "b"]]}, headers=headers)
        server.note("wrong key", "refused in words" if status == 401 else "wrong", path, headers, status, body)


def many_clients(server: Server, count: int) -> None:
    """Fifty clients at a time, whose vectors must be those of each text alone; one request in seven is cut short."""

    def vectors(texts: list[str]) -> list[list[float]]:
        return [one["embedding"] for one in json.loads(server.ask("/v1/embeddings", {"input": texts})[1])["data"]]

    alone = {word: np.array(vectors([word])[0]) for word in WORDS}

    def client(number: int) -> None:
        draw = random.Random(number)
        for _ in range(count // 50):
            texts = draw.choices(WORDS, k=draw.randrange(1, 9))

            def right(answer, texts=texts) -> bool:
                found = [np.array(one["embedding"]) for one in answer["data"]]
                pairs = zip(texts, found, strict=True)
                return all(np.abs(alone[text] - vector).max() < 1e-4 for text, vector in pairs)

            if draw.random() < 1 / 7:
                body = json.dumps({"input": texts}).encode()
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    connection.sendall(head("/v1/embeddings", len(body)) + body[: draw.randrange(len(body) + 1)])
                server.note("cut short", "connection ended")
            else:
                server.judge("fifty clients", lambda: server.ask("/v1/embeddings", {"input": texts}), right)  # noqa: B023

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(client, range(50)))


def head(path: str, length: int) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", "Content-Type: application/json")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


def at_once(server: Server, count: int) -> None:
    """More requests than may wait, each of forty long pairs."""
    body = {"pairs": [["怎么还款" * 10, "如何还款" * 10]] * 40}
    with ThreadPoolExecutor(count) as pool:
        right = lambda answer: len(answer["scores"]) == 40  # noqa: E731
        list(pool.map(lambda _: server.judge("at once", lambda: server.ask("/similarity", body), right), range(count)))


def huge(server: Server, count: int) -> None:
    """Bodies over the limit, with their length and in chunks without one."""

    def chunked() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        connection.request("POST", "/similarity", (b" " * 2**20 for _ in range(40)), headers, encode_chunked=True)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    long = b'{"input": "' + b"a" * 9 * 2**20 + b'"}'
    for number in range(count):
        server.judge("huge bodies", chunked if number % 2 else lambda: server.ask("/v1/embeddings", long))


def unfinished(server: Server, count: int) -> float:
    """Connections with an unfinished request: seconds until the last one is closed, next to honest requests."""
    started, sockets = time.monotonic(), []
    parts = (b"", b"POST /similarity HTTP/1.1\r\nHost: x\r\n", head("/similarity", 1000) + b'{"pairs": [[')
    for number in range(count):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=150)
        connection.sendall(parts[number % 3])
        sockets.append(connection)
    for _ in range(10):
        server.judge("beside unfinished", lambda: server.ask("/similarity", {"pairs": [["a", "b"]]}))
    for connection in sockets:
        with connection:
            try:
                connection.recv(4096)
                server.note("unfinished", "connection ended")
            except ConnectionResetError:
                server.note("unfinished", "connection ended")
            except TimeoutError as error:
                server.note("unfinished", "no answer", error)
    return time.monotonic() - started


def work(server: Server) -> dict[str, float]:
    """Requests of the largest allowed work, and the waiting time of others meanwhile."""
    documents = {"query": "好" * 8000, "texts": [f"怎么还款{number}" for number in range(500)]}
    large = {"input": [f"{number}" + "好" * 9000 for number in range(220)]}

    def short() -> None:
        server.judge("beside large ones", lambda: server.ask("/rerank", {"query": "还款", "texts": WORDS[:3]}))

    def health() -> None:
        server.judge("health", lambda: server.ask("/health", method="GET"))

    def processor() -> float:
        return sum(server.process.cpu_times()[:2])

    seconds = {}
    with server.watched(short, 0.1) as waited:
        before = processor()
        server.judge("large", lambda: server.ask("/rerank", documents, timeout=300), lambda answer: len(answer) == 500)
        seconds["processor time of a rerank request of 4 Mi characters"] = processor() - before
    seconds["longest wait of a short request beside it"] = max(waited)
    with server.watched(health, 0.05) as waited:
        server.judge("large", lambda: server.ask("/v1/embeddings", large, timeout=300))
    seconds["longest wait of /health beside 6 MB of embeddings"] = max(waited)
    for _ in range(30):  # and leave
        body = json.dumps(documents).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head("/rerank", len(body)) + body)
            time.sleep(0.05)
        server.note("left", "connection ended")
    started = time.monotonic()
    short()
    seconds["wait behind thirty large requests whose clients have left"] = time.monotonic() - started
    amplified = {"query": "好" * 20_000, "texts": ["好"] * 2048}
    server.judge("large", lambda: server.ask("/rerank", amplified))
    return seconds


def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, serving(folder) as server:
        memory = [server.process.memory_info().rss]
        malformed(server, random.Random(5), args.requests * 46 // 100)
        keys(server, 48)
        many_clients(server, args.requests * 29 // 100)
        huge(server, 20)
        at_once(server, 330)
        seconds = work(server)
        seconds["until the last unfinished connection is closed"] = unfinished(server, 300)
        memory.append(server.process.memory_info().rss)
        stopping = {"query": "好" * 2000, "texts": ["好" * 9] * 2000}
        thread = threading.Thread(target=lambda: server.judge("at SIGTERM", lambda: server.ask("/rerank", stopping)))
        thread.start()
        time.sleep(1)
        started = time.monotonic()
        server.process.terminate()
        server.process.wait(timeout=60)
        seconds["from SIGTERM to the end, with a large request at work"] = time.monotonic() - started
        thread.join()
    server.outcomes.pop("at SIGTERM")  # which may be answered or not
    rows = [
        {"kind": kind, "cases": counts.total()} | {outcome: counts[outcome] for outcome in OUTCOMES}
        for kind, counts in server.outcomes.items()
    ]
    cases = sum(row["cases"] for row in rows)
    shown = {name: round(value, 2) for name, value in seconds.items()}
    mebibytes = [size >> 20 for size in memory]
    print(
        fuzz_serve_table(save(str(args.output), "fuzz_serve", rows, cases=cases, seconds=shown, memory_mib=mebibytes))
    )


def fuzz_serve_table(result: dict) -> str:
    """The outcomes by kind of request."""
    used = [outcome for outcome in OUTCOMES if any(row[outcome] for row in result["rows"])]
    rows = [[row["kind"], f"{row['cases']:,}", *(f"{row[outcome]:,}" for outcome in used)] for row in result["rows"]]
    return markdown_table(["requests", "count", *used], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3500)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
