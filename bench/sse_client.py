"""A streaming client that only takes times: one thread, raw sockets, no parsing until the streams have ended, so that
the measurement costs the two measured cores as little as it can."""
import dataclasses
import json
import selectors
import socket
import time

EVENT = b"data: {"


@dataclasses.dataclass
class Stream:
    start: float                    # seconds, time.monotonic: when the request was sent
    buffer: bytearray = dataclasses.field(default_factory=bytearray)
    times: list[float] = dataclasses.field(default_factory=list)  # arrival of each event that carries text
    scanned: int = 0
    done: bool = False

    def feed(self, data: bytes, now: float) -> None:
        self.buffer += data
        while (at := self.buffer.find(EVENT, self.scanned)) >= 0:
            self.scanned = at + len(EVENT)
            self.times.append(now)
        self.done = self.buffer.find(b"data: [DONE]", max(0, len(self.buffer) - len(data) - 16)) >= 0

    def finish(self) -> None:
        """Checks the answer and drops from `times` the events that hold no token: the usage chunk."""
        events = [json.loads(line[len(b"data: "):]) for line in self.buffer.split(b"\n") if line.startswith(EVENT)]
        if not events or not any(event.get("choices") for event in events):
            raise RuntimeError("no tokens came: " + self.buffer.decode(errors="replace")[:2000])
        usages = [event["usage"] for event in events if event.get("usage")]
        self.num_tokens = usages[-1]["completion_tokens"]
        self.num_cached = (usages[-1].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.times = [at for at, event in zip(self.times, events) if event.get("choices")]

    @property
    def ttft(self) -> float:
        return self.times[0] - self.start

    def decode_rate(self) -> float:
        return (self.num_tokens - 1) / (self.times[-1] - self.times[0])


def completion_body(model: str, prompt: list[int], max_tokens: int) -> bytes:
    return json.dumps({
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }).encode()


def open_stream(port: int, body: bytes) -> tuple[socket.socket, Stream]:
    connection = socket.create_connection(("127.0.0.1", port), timeout=600)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode()
    start = time.monotonic()
    connection.sendall(head + body)
    return connection, Stream(start)


def run_streams(port: int, bodies: list[bytes], delays: list[float] | None = None,
                stop_when: int | None = None, linger: float = 0.0) -> list[Stream]:
    """Runs the requests together, request i sent after delays[i] seconds. `linger` seconds after request `stop_when` has
    ended the others are cut off and returned as far as they came."""
    selector = selectors.DefaultSelector()
    delays = delays or [0.0] * len(bodies)
    began = time.monotonic()
    waiting = sorted(range(len(bodies)), key=lambda i: delays[i])
    streams: dict[int, Stream] = {}
    open_count = 0
    stop_at = None
    while waiting or open_count:
        while waiting and time.monotonic() >= began + delays[waiting[0]]:
            index = waiting.pop(0)
            connection, streams[index] = open_stream(port, bodies[index])
            selector.register(connection, selectors.EVENT_READ, index)
            open_count += 1
        for key, _ in selector.select(timeout=0.05 if waiting else 600 if stop_at is None else linger):
            data = key.fileobj.recv(1 << 16)
            stream = streams[key.data]
            stream.feed(data, time.monotonic())
            if stream.done or not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                open_count -= 1
        if stop_at is None and stop_when in streams and streams[stop_when].done:
            stop_at = time.monotonic() + linger
        if stop_at is not None and time.monotonic() >= stop_at:
            break
    for key in list(selector.get_map().values()):
        key.fileobj.close()
    for index, stream in streams.items():
        if stop_when is None or index == stop_when:
            stream.finish()
    return [streams[i] for i in range(len(bodies))]


def joint_rate(streams: list[Stream]) -> float:
    """Tokens per second of all streams together, over the time in which every one of them was decoding."""
    begin = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    if end <= begin:
        raise RuntimeError("the streams never ran together: ask for more tokens")
    per_event = sum(s.num_tokens for s in streams) / sum(len(s.times) for s in streams)
    count = sum(1 for stream in streams for at in stream.times if begin < at <= end)
    return count * per_event / (end - begin)
