"""The order of the files, the engine they share, and the tables they print.

    .real/client/bin/python -m pytest tests/real            all
    .real/client/bin/python -m pytest tests/real -k golden  some

`tests/real/setup.sh` makes .real; kit/settings.py says what can be set.
"""
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kit import settings  # noqa: E402
from kit.engine import Engines  # noqa: E402

# First what needs no real engine (it may still be loading), then what uses the
# plain one, then what kills it, then the one with the crash plugin.
ORDER = ["test_count", "test_templates", "test_images", "test_image_counts", "test_unfinished", "test_stale",
         "test_upload", "test_golden",
         "test_length", "test_openai", "test_leaving", "test_idle_close", "test_preemption",
         "test_core_kill", "test_mission"]

_tables = []
_engines = Engines()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: ORDER.index(item.module.__name__))


def pytest_sessionfinish():
    _engines.end()


def pytest_terminal_summary(terminalreporter):
    for text in _tables:
        terminalreporter.write_line(text)


@pytest.fixture
def show():
    """Prints a table at the end of the run, and keeps it in tables.txt."""
    def show(title, text):
        _tables.append(f"\n{title}\n{text}")
        settings.LOGS.mkdir(parents=True, exist_ok=True)
        with open(settings.LOGS / "tables.txt", "a") as file:
            file.write(f"\n{time.strftime('%F %T')} {title}\n{text}\n")
    return show


@pytest.fixture
def engines():
    return _engines


@pytest.fixture
def engine():
    """The plain engine, idle."""
    return _engines.need("plain")
