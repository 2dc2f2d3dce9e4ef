"""Fixtures that all tests of the program share."""

import os
import signal

import pytest

from paddock_testing import battery
from paddock_testing import run as paddock


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than ten seconds on a 2-core machine")
    # Under nohup SIGHUP is ignored, and so it would be in every program that is tested. A handler of
    # our own is none for them.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    config.addinivalue_line("markers", "alone: counts things of the whole machine, so nothing may "
                            "run beside it; tests/run has a part for these")


def pytest_collection_finish(session):
    """An attack without a control proves nothing, so nothing is run while there is one."""
    lone = [attack.id for attack in battery.without_control()]
    if lone:
        raise pytest.UsageError(f"attacks without a control: {', '.join(lone)}: put them into a Table"
                                " of paddock_testing.battery")


def pytest_terminal_summary(terminalreporter):
    if battery.tabled:
        for line in battery.summary():
            terminalreporter.write_line(line)


def pytest_report_header(config):
    return f"paddock: {paddock.PADDOCK}, weak: {paddock.PADDOCK_WEAK}, slowness {paddock.SLOW:g}"


@pytest.fixture(scope="session", autouse=True)
def program():
    """Nothing can be tested without the program: say so once, and loudly."""
    if not os.access(paddock.PADDOCK, os.X_OK):
        pytest.exit(f"no program to test at {paddock.PADDOCK}: build it, or set PADDOCK", 2)
    return paddock.PADDOCK


@pytest.fixture(scope="session")
def fixtures():
    made = battery.Fixtures()
    yield made
    made.close()


@pytest.fixture
def as_root():
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def keeper():
    with paddock.Keeper() as k:
        yield k
