"""Prometheus text: as much of it as these tests read."""
import re
import time
import urllib.error
import urllib.request

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


asked = 0.0                 # when the last scrape was asked for that was answered, by time.monotonic
given_up = 0                # scrapes that were not answered in time


class Page:
    """One scrape."""

    def __init__(self, text):
        self.series = {}
        for line in text.splitlines():
            m = None if line.startswith("#") else _LINE.match(line)
            if m:
                labels = dict(_LABEL.findall(m[2] or ""))
                self.series.setdefault(m[1], []).append((labels, float(m[3])))

    def total(self, name, **labels):
        """The sum over all series of that name with these labels; 0 where there is none."""
        return sum(v for have, v in self.series.get(name, ())
                   if all(have.get(k) == w for k, w in labels.items()))

    def has(self, name):
        return name in self.series


def scrape(base, path="/metrics", seconds=30):
    """One page.  vLLM's API server sometimes leaves such a request unanswered until all streams are over:
    after a second another is made, on a connection of its own."""
    global asked, given_up
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        try:
            with urllib.request.urlopen(base + path, timeout=1) as answer:
                page = Page(answer.read().decode())
            asked = began
            return page
        except (TimeoutError, urllib.error.URLError) as error:
            if not isinstance(getattr(error, "reason", error), TimeoutError):
                raise
            given_up += 1
            if time.monotonic() > end:
                raise
