"""Engines for the tests of this folder: started once, skipped with the reason where none starts."""

import pytest

from paddock_testing import engine


def _engine(kind):
    reason = engine.why_not(kind)
    if reason:
        pytest.skip(f"no {kind} here: {reason}")
    return (engine.Dockerd("--insecure-registry", "127.0.0.0/8") if kind == "docker"
            else engine.Podman())


@pytest.fixture(scope="session")
def dockerd():
    daemon = _engine("docker")
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.close()


@pytest.fixture(scope="session")
def podman():
    service = _engine("podman")
    service.start()
    try:
        yield service
    finally:
        service.close()


@pytest.fixture(scope="session")
def images(dockerd):
    return engine.make_images(dockerd)


@pytest.fixture(scope="session")
def registry():
    server = engine.Registry("tester", "secret word")
    server.start()
    try:
        yield server
    finally:
        server.close()
