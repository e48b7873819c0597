"""Serving the page: to this machine only, asking no other host, and with bounds on what one may send and keep."""

import logging
import os
import sys
from pathlib import Path
from time import sleep

from cosent.demo_page.models import Models
from cosent.errors import InputError

HOST = "127.0.0.1"
# Before gradio is imported: it would report to its makers, ask for its newest version, and keep runs in the browser.
os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
# A proxy of the user is not asked for the page of this machine, or Gradio would not find it.
os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), HOST, "localhost"]))

import gradio as gr  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.middleware.trustedhost import TrustedHostMiddleware  # noqa: E402
from starlette.types import ASGIApp, Message, Receive, Scope, Send  # noqa: E402

from cosent.demo_page.layout import build  # noqa: E402

logger = logging.getLogger(__name__)

QUEUE, SESSIONS, THREADS = 32, 64, 8  # questions that wait, users that are remembered, threads
LARGEST_FILE, LARGEST_BODY = 2 * 2**20, 4 * 2**20  # bytes
OWN = "'self' 'unsafe-inline'"
POLICY = (  # the browser asks nobody else; frames inherit it
    f"default-src 'self'; script-src {OWN} 'unsafe-eval'; style-src {OWN}; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; frame-src 'self'; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'self' about:; form-action 'self'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """Adds headers to every answer, and refuses a question that is larger than any of this page, or of unknown size."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        if scope["type"] == "http" and scope["method"] == "POST":
            size = dict(scope["headers"]).get(b"content-length", b"")
            if not size.isdigit() or int(size) > LARGEST_BODY:
                await with_headers({"type": "http.response.start", "status": 413, "headers": []})
                await send({"type": "http.response.body", "body": b"too large"})
                return
        await self.app(scope, receive, with_headers)


def serve(models: Models, reports: dict[str, Path], port: int | None = None, share: bool = False) -> None:
    """Opens the page and waits until the process is stopped.

    Raises:
        InputError: the port is taken.
    """
    page = build(models, reports)
    page.queue(max_size=QUEUE, api_open=False)
    guards = [Middleware(Guard)]
    if not share:  # else a page of another site could pretend to be this host, and read the answers
        guards.append(Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]))
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        _, address, public = page.launch(
            server_name=HOST, server_port=port, share=share, prevent_thread_lock=True, quiet=True, inbrowser=False,
            max_threads=THREADS, max_file_size=LARGEST_FILE, state_session_capacity=SESSIONS, ssr_mode=False,
            enable_monitoring=False, run_history=False, mcp_server=False, pwa=False, footer_links=[], theme=theme,
            css_paths=Path(__file__).with_name("page.css"), app_kwargs={"middleware": guards},
        )  # fmt: skip
    except OSError as error:
        raise InputError(f"No page can be opened at port {port or '7860 to 7959'} of {HOST} ({error}). Pass another "
                         "--port.") from error  # fmt: skip
    try:
        print(f"{address}  (Ctrl-C ends)", file=sys.stderr, flush=True)
        if share:
            print(public or "no public link: gradio.live was not reached", file=sys.stderr, flush=True)
        while True:  # one endless wait would not hear Ctrl-C on Windows, nor a signal that another thread got
            sleep(1)
    finally:
        page.close(verbose=False)
