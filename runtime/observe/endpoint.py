"""The plain HTTP port of a node: its metrics for Prometheus, and an answer for the probes of whoever runs it."""

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Answer = Callable[[str], bool | None]
"""What a probe is told, by its path; nothing if the path is no probe's."""

IDLE_S = 5.0
"""Time for which a connection may be silent: who asks has its question at hand."""
CONNECTIONS = 32
"""Connections at once, each of which is a thread. Another one ends the oldest, so that a probe is always answered."""


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, *_: object) -> None:
        """Log no requests."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._lock, self._open = Lock(), dict[object, None]()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; there are only so many of these."""
        with self._lock:
            oldest: Any = next(iter(self._open)) if len(self._open) >= CONNECTIONS else None
            self._open.pop(oldest, None)
            self._open[request] = None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end of it, and ends
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that is over."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """Say nothing of those who hang up or are silent: there may be many."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class Endpoint:
    """The HTTP endpoint while it serves. Call it to close it; twice does no harm."""

    def __init__(self, server: WSGIServer | None = None, thread: Thread | None = None) -> None:
        """Without a server it is an endpoint that was never opened, so that callers need not ask."""
        self._server = server
        self._thread = thread
        self.port: int | None = None if server is None else server.server_port
        """Where it listens, None if it does not: a test asks for port 0 and gets a free one."""

    def __call__(self) -> None:
        """Stop listening and wait for the thread."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()


def serve(registry: CollectorRegistry, port: int | None, host: str, answer: Answer | None = None) -> Endpoint:
    """Serve metrics and probes, and return what closes them again. None for a port serves nothing."""
    if port is None:
        return Endpoint()
    app = make_wsgi_app(registry)
    try:
        family = socket.getaddrinfo(host, port)[0][0]
        kind = _Server6 if family is socket.AF_INET6 else _Server
        server = make_server(host, port, app if answer is None else _with_probes(app, answer), kind, _Handler)
    except OSError as error:
        problem = f"metrics cannot be served on {host}:{port}: {error.strerror}; choose another port or address"
        raise OSError(error.errno, problem) from error
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    return Endpoint(server, thread)


def _with_probes(metrics: "WSGIApplication", answer: Answer) -> "WSGIApplication":
    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        well = answer(environ.get("PATH_INFO", ""))
        if well is None:
            return metrics(environ, start_response)
        start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"yes\n" if well else b"no\n"]

    return app
