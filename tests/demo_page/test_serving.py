"""What is refused before anybody's question reaches a model, and what the page lets a browser do."""

import asyncio

import pytest

pytest.importorskip("gradio", reason="the page needs gradio: pip install -r requirements-dev.txt")

from cosent.demo_page.serving import LARGEST_BODY, Guard


def answer_to(method: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Status and headers of the guard around an application that answers 200."""
    sent = []

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})

    async def send(message):
        sent.append(message)

    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(Guard(application)({"type": "http", "method": method, "headers": given}, None, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize("size", [{"content_length": str(LARGEST_BODY + 1)}, {}, {"content_length": "-1"}])
def test_a_flood_is_refused(size):
    """Fails if one request, or one that does not say how long it is, can fill the memory of the machine."""
    assert answer_to("POST", **size)[0] == 413
    assert answer_to("POST", content_length=str(LARGEST_BODY))[0] == answer_to("GET")[0] == 200


def test_the_browser_is_told_to_ask_nobody_else():
    """Fails if a script, picture or font of another host could be loaded into the page."""
    _, headers = answer_to("GET")
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["connect-src"] == "'self'" and headers["content-type"] == "text/html"
    hosts = {word for sources in policy.values() for word in sources.split() if "'" not in word}
    assert hosts <= {"data:", "blob:", "about:"}
