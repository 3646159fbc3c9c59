"""A small stand-in for vLLM: keeps books of what reached it and when, and can be
rude in ways that a real engine is only by chance.

Used where the matter is the gateway's journal or its connections, not the engine.
"""
import json
import re
import socket
import threading
import time

from . import settings

_EVENT = 'data: {"id":"cmpl-%s","object":"text_completion","created":1,"model":"tiny",' \
         '"choices":[{"index":0,"text":" x","logprobs":null,"finish_reason":%s}]}\n\n'


class FakeEngine:
    def __init__(self, port=0, gap=0.02):
        self.gap = gap                  # seconds between two events
        self.rude, self.rude_times = None, 0        # see `_is_rude`
        self.books, self.lock = [], threading.Lock()
        self.running, self.tokens, self.started = 0, 0, time.time()
        self.connections = set()
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.server.bind(("127.0.0.1", port))
        self.port = self.server.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server.listen(256)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        """Gone, with all its connections, as after a kill."""
        try:
            self.server.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.server.close()
        for c in list(self.connections):
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self):
        while True:
            try:
                c, _ = self.server.accept()
            except OSError:
                return
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.add(c)
            threading.Thread(target=self._serve, args=(c,), daemon=True).start()

    def _serve(self, c):
        data, served = b"", 0
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    part = c.recv(65536)
                    if not part:
                        return
                    data += part
                head, data = data.split(b"\r\n\r\n", 1)
                size = int((re.search(rb"content-length: *(\d+)", head, re.I) or [0, 0])[1])
                book = self._book(head)
                while len(data) < size:
                    part = c.recv(65536)
                    if not part:
                        return
                    data += part
                body, data = data[:size], data[size:]
                if self._is_rude(c, head, served):
                    return
                self._answer(c, head.split()[1].decode().split("?")[0], body, book)
                served += 1
        except OSError:
            pass
        finally:
            self.connections.discard(c)
            c.close()

    def _is_rude(self, c, head, served):
        """`close_reused`: a connection that has served before is closed when a request
        comes; `reset_reused`: the same, as a reset."""
        if self.rude is None or not served or not head.startswith(b"POST"):
            return False
        self.rude_times += 1
        if self.rude == "reset_reused":
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        return True

    def _book(self, head):
        if not re.match(rb"POST /v1/(chat/)?completions ", head):
            return None                 # only generation is booked
        rid = re.search(rb"x-request-id: *([^\r\n]+)", head, re.I)
        book = {"id": rid[1].decode() if rid else "", "reached": time.monotonic(), "ended": None}
        with self.lock:
            self.books.append(book)
        return book

    def _answer(self, c, path, body, book):
        if book is None:
            kind, text = self._page(path)
            status = "200 OK" if text is not None else "404 Not Found"
            return self._whole(c, status, kind, text or "{}")
        ask = json.loads(body)
        with self.lock:
            self.running += 1
        try:
            if ask.get("stream"):
                self._stream(c, ask.get("max_tokens", 16), book)
            else:
                self._plain(c, ask.get("max_tokens", 16))
            book["ended"] = time.monotonic()
        finally:
            with self.lock:
                self.running -= 1

    def _whole(self, c, status, kind, text):
        data = text.encode()
        c.sendall(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n"
                  f"content-length: {len(data)}\r\n\r\n".encode() + data)

    def _stream(self, c, number, book):
        c.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                  b"transfer-encoding: chunked\r\n\r\n")
        for i in range(number):
            time.sleep(self.gap)
            last = '"length"' if i == number - 1 else "null"
            self._chunk(c, _EVENT % (book["id"], last))
            self.tokens += 1
        self._chunk(c, "data: [DONE]\n\n")
        c.sendall(b"0\r\n\r\n")

    def _chunk(self, c, text):
        data = text.encode()
        c.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def _plain(self, c, number):
        time.sleep(self.gap * number)
        self.tokens += number
        self._whole(c, "200 OK", "application/json", json.dumps({
            "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny",
            "choices": [{"index": 0, "text": " x" * number, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 4, "completion_tokens": number, "total_tokens": 4 + number},
        }))

    def _page(self, path):
        if path == "/health":
            return "text/plain", ""
        if path == "/version":
            return "application/json", '{"version":"0.32.0"}'
        if path == "/v1/models":
            return "application/json", json.dumps({"object": "list", "data": [{
                "id": "tiny", "object": "model", "created": 1, "owned_by": "vllm",
                "root": str(settings.TOKENS / "tiny-llama3"), "max_model_len": 2048}]})
        if path == "/metrics":
            return "text/plain; version=1.0.0; charset=utf-8", self._metrics()
        return "application/json", None

    def _metrics(self):
        own = '{engine="0",model_name="tiny"}'
        lines = [f"vllm:num_requests_running{own} {self.running}",
                 f"vllm:num_requests_waiting{own} 0", f"vllm:kv_cache_usage_perc{own} 0.1",
                 f"vllm:num_preemptions_total{own} 0",
                 f"vllm:generation_tokens_total{own} {self.tokens}",
                 f"vllm:prompt_tokens_total{own} 0",
                 f"process_start_time_seconds {self.started}",
                 'vllm:cache_config_info{block_size="32",num_gpu_blocks="8001",engine="0"} 1']
        return "\n".join(lines) + "\n"
