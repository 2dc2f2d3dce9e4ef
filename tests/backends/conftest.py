"""Engines for the tests of this folder: started once, skipped with the reason where none starts."""

import contextlib
import os

import pytest

from paddock_testing import engine
from paddock_testing.server import Server


def _engine(kind):
    reason = engine.why_not(kind)
    if reason:
        pytest.skip(f"no {kind} here: {reason}")
    return (engine.Dockerd("--insecure-registry", "127.0.0.0/8") if kind == "docker"
            else engine.Podman())


@contextlib.contextmanager
def _started(service):
    service.start()
    try:
        yield service
    finally:
        service.close()


@pytest.fixture(scope="session")
def dockerd():
    with _started(_engine("docker")) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def podman():
    with _started(_engine("podman")) as service:
        yield service


@pytest.fixture(scope="session")
def images(dockerd):
    return engine.make_images(dockerd)


@pytest.fixture(scope="session")
def debian(dockerd):
    """The name of an image with all that the suites use."""
    return engine.make_debian(dockerd, engine.DEBIAN_MORE if os.environ.get("PADDOCK_NIGHTLY") else ())


@pytest.fixture(scope="session")
def podman_debian(podman):
    """The same in podman."""
    return engine.make_debian(podman, engine.DEBIAN_MORE, "test/debian:latest")  # it imports no other tag


@pytest.fixture(scope="session")
def registry():
    with _started(engine.Registry("tester", "secret word")) as server:
        yield server


@pytest.fixture(scope="module")
def server(dockerd, images):  # images: none is pulled
    """A server with docker beside the jail; the files that test another provider have their own."""
    s = Server({"providers": "jail,docker", "docker_host": dockerd.host, "image_pull": "never"})
    s.start()
    try:
        yield s
    finally:
        s.close()
    assert not dockerd.containers(), "containers are left behind"


@pytest.fixture(scope="session")
def far():
    """An engine that might be on another machine."""
    if reason := engine.why_not("docker"):
        pytest.skip(f"no docker here: {reason}")
    with _started(engine.FarDockerd()) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def far_debian(far):
    return engine.make_debian(far, engine.DEBIAN_MORE if os.environ.get("PADDOCK_NIGHTLY") else ())


@pytest.fixture(scope="session")
def far_images(far):
    return engine.make_images(far)
