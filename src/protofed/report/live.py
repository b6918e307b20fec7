"""A run that can be watched in a browser: the report, served on this machine alone, with each round as it is made.

The address has a random token; without it the server answers 403. Requests that name another host are refused, so that
no page of another site can read the report.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.experiment.stop_request import ask_to_stop
from protofed.experiment.stored import load_runs
from protofed.experiment.watchers import Watcher
from protofed.report.content import gather
from protofed.report.page import html_page, verdict_words

_HOST = "127.0.0.1"
_SILENT = 5.0
"""Seconds after which a connection that says nothing is closed, so that it cannot keep a run from ending."""
_LOOK_EVERY = 0.3
"""Seconds between looks at the run folders."""


class LivePage:
    """A server of the report of these run folders. `close` ends it."""

    def __init__(self, folders: Sequence[Path], port: int = 0) -> None:
        self.folders, self.token, self.ended = list(folders), secrets.token_urlsafe(16), threading.Event()
        try:
            self.server = ThreadingHTTPServer((_HOST, port), self._handler())
        except OSError as problem:
            raise UserError(f"--port: got {port}, which cannot be used: {problem.strerror}. Leave it out.") from problem
        self.server.daemon_threads = False  # so that `close` waits until every browser has the last state
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://{_HOST}:{self.server.server_address[1]}/?token={self.token}"

    def state(self) -> tuple[Any, ...]:
        """A value that changes whenever a run folder has something new."""
        files = [folder / name for folder in self.folders for name in ("rounds.jsonl", "result.json", "trace")]
        return tuple((file.stat().st_mtime_ns, file.stat().st_size) if file.exists() else None for file in files)

    def wait_for_a_round(self) -> None:
        """Wait until there is something to show."""
        while not all(Folder(folder).has_rounds() for folder in self.folders) and not self.ended.wait(_LOOK_EVERY):
            pass

    def wait(self) -> None:
        """Wait until no run is running, then tell the browsers and end the server."""
        while any(Folder(folder).is_in_use() for folder in self.folders) and not self.ended.wait(_LOOK_EVERY):
            pass
        self.close()

    def close(self) -> None:
        """Send the last state to the browsers, and end the server."""
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()

    def _handler(page: LivePage) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            """Three addresses: the page, its events, and the request to stop. Every answer closes its connection."""

            timeout = _SILENT

            def do_GET(self) -> None:
                if not self.allowed():
                    return
                path = urlsplit(self.path).path
                if path == "/":
                    page.wait_for_a_round()
                    try:
                        text = html_page(gather(load_runs(page.folders)), live=True)
                    except UserError as problem:  # the run ended before its first round
                        self.answer(503, "text/plain; charset=utf-8", f"{problem}\n")
                    else:
                        self.answer(200, "text/html; charset=utf-8", text)
                elif path == "/events":
                    self.events()
                else:
                    self.answer(404, "text/plain", "There is no such page.\n")

            def do_POST(self) -> None:
                if not self.allowed():
                    return
                if urlsplit(self.path).path != "/stop":
                    self.answer(404, "text/plain", "There is no such page.\n")
                    return
                for folder in page.folders:
                    if Folder(folder).is_in_use():
                        ask_to_stop(folder)
                self.answer(202, "text/plain", "The run stops at its next checkpoint.\n")

            def allowed(self) -> bool:
                """Whether the request has the token and names this host; if not, it is answered with 403."""
                token = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
                host = (self.headers.get("Host") or "").partition(":")[0]
                if hmac.compare_digest(token.encode(), page.token.encode()) and host in (_HOST, "localhost"):
                    return True
                self.answer(403, "text/plain", "Open the address that `protofed watch` printed, with its token.\n")
                return False

            def answer(self, code: int, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(body)

            def events(self) -> None:
                """Send the content whenever a run folder has something new, until the run or the reader ends."""
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                before = None
                try:
                    while True:
                        ended = page.ended.wait(_LOOK_EVERY)
                        if (now := page.state()) != before or ended:
                            before, content = now, gather(load_runs(page.folders))
                            self.send_event("content", {"content": content, "words": verdict_words(content)})
                        if ended:
                            self.send_event("end", {})
                            return
                except (OSError, UserError):  # the browser was closed, or the run has no round
                    return

            def send_event(self, name: str, message: Any) -> None:
                self.wfile.write(f"event: {name}\ndata: {json.dumps(message, separators=(',', ':'))}\n\n".encode())
                self.wfile.flush()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing is logged: addresses have the token in them."""

        return Handler


class LiveWatcher(Watcher):
    """Serves the page of the run in `folder` while it goes on; `say` shows its address."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(folder)
        self.served, self.say = folder, say
        self.page: LivePage | None = None

    def started(self, *about: Any) -> None:
        self.page = LivePage([self.served])
        self.say(f"Watch it at {self.page.address}")

    def closed(self) -> None:
        if self.page:
            self.page.close()
