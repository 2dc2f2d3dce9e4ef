"""Fixtures for drivers of code contexts, which run here without a jail and without a server."""

import pytest

from paddock_testing import drivers


@pytest.fixture(scope="session")
def languages():
    return drivers.languages()


@pytest.fixture
def start(languages, tmp_path):
    """Starts drivers, and ends them behind the test."""
    started = []

    def start(name, **options):
        language = languages[name]
        if not language.is_here():
            pytest.skip(f"{name}: there is no {language.argv[0]} on this host")
        options.setdefault("cwd", tmp_path)
        started.append(drivers.Driver(language, **options))
        return started[-1]

    yield start
    for driver in started:
        driver.stop()


@pytest.fixture
def python(start):
    return start("python")
