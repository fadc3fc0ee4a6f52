"""An HTTP server on loopback that serves ranges of a folder's files."""

import contextlib
import functools
import http.server
import threading


class _Ranges(http.server.BaseHTTPRequestHandler):
    """Answers requests for ranges of files; a path may name a status instead."""

    def __init__(self, folder, requests, *arguments):
        self.folder, self.requests = folder, requests
        super().__init__(*arguments)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        name = self.path.strip("/")
        self.requests.append(name)
        if name.isdecimal():
            self.send_error(int(name))
            return
        path = self.folder / name
        if not path.exists():
            self.send_error(404)
            return
        data = path.read_bytes()
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def range_server(folder):
    """Serves a folder; gives the URL, and a list that gets the path of every request."""
    requests = []
    handler = functools.partial(_Ranges, folder, requests)
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", requests
    finally:
        made.shutdown()
        thread.join()
        made.server_close()
