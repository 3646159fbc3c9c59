"""The order of the files, the engine they share, and the tables they print.

    .real/client/bin/python -m pytest tests/real            all
    .real/client/bin/python -m pytest tests/real -k golden  some

`tests/real/setup.sh` makes .real; kit/settings.py says what can be set.
"""
import sys
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

sys.path.insert(0, str(Path(__file__).parent))

from kit import prom, pulse, settings  # noqa: E402
from kit.engine import Engines  # noqa: E402
from kit.gateway import Gateway  # noqa: E402

# First what needs no real engine (it may still be loading), then what uses the
# plain one, then what kills it, then the one with the crash plugin.
ORDER = ["test_count", "test_templates", "test_images", "test_image_counts", "test_unfinished", "test_stale",
         "test_upload", "test_golden",
         "test_length", "test_openai", "test_prefix", "test_leaving", "test_idle_close", "test_preemption",
         "test_core_kill", "test_mission"]

STILL = 0.5                 # seconds of standing still that excuse a failure, once

_tables = []
_engines = Engines()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: ORDER.index(item.module.__name__))


def pytest_sessionfinish():
    _engines.end()


def pytest_terminal_summary(terminalreporter):
    if prom.given_up:
        _tables.append(f"\nScrapes given up after a second without an answer: {prom.given_up}")
    for text in _tables:
        terminalreporter.write_line(text)


def pytest_runtest_protocol(item, nextitem):
    """A test that failed on a machine that stood still meanwhile is run once more: many wait for what must come
    within a second."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    began = time.monotonic()
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = next((report for report in reports if report.failed), None)
    still = pulse.stood_still(began, time.monotonic())
    if failed and still >= STILL:
        _tables.append(f"\nRun again, because the machine stood still for {still:.1f} s: {item.nodeid}\n"
                       f"{failed.longreprtext[-600:]}")
        _engines.renew()
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure shows what the gateway said last, and whether the machine stood still."""
    report = yield
    gate, Gateway.last = Gateway.last, None if report.when == "teardown" else Gateway.last
    if report.failed and gate:
        still = pulse.stood_still(time.monotonic() - call.duration, time.monotonic())
        report.sections.append((f"the gateway's last words; the machine stood still for {still:.1f} s",
                                "\n".join(line[:400] for line in gate.log_tail().splitlines())))
    return report


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
