"""The plain HTTP port of a node: its metrics for Prometheus, and an answer for the probes of whoever runs it."""

from collections.abc import Callable, Iterable
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Answer = Callable[[str], bool | None]
"""What a probe is told, by its path; nothing if the path is no probe's."""


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
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        problem = f"metrics cannot be served on {host}:{port}: {error.strerror}; choose another port or address"
        raise OSError(error.errno, problem) from error
    if answer is not None and (metrics := server.get_app()) is not None:
        server.set_app(_with_probes(metrics, answer))
    return Endpoint(server, thread)


def _with_probes(metrics: "WSGIApplication", answer: Answer) -> "WSGIApplication":
    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        well = answer(environ.get("PATH_INFO", ""))
        if well is None:
            return metrics(environ, start_response)
        start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"yes\n" if well else b"no\n"]

    return app
