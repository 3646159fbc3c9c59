"""How long the machine stood still: a thread that should beat ten times a second, and the gaps between its beats.

A test machine may be stopped for seconds, or give its processors to others.  What a test times is then not
the gateway's doing.
"""
import threading
import time

EVERY = 0.1
GAP = 0.5                   # seconds between two beats from which on it is told

_gaps = []                  # (from, to), by time.monotonic


def _beat():
    last = time.monotonic()
    while True:
        time.sleep(EVERY)
        now = time.monotonic()
        if now - last > GAP:
            _gaps.append((last + EVERY, now))
        last = now


threading.Thread(target=_beat, daemon=True).start()


def stood_still(start, end):
    """Seconds of this span, by time.monotonic, in which the machine stood still."""
    return sum(max(0.0, min(end, b) - max(start, a)) for a, b in list(_gaps))
