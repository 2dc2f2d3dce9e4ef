"""What several attacks on the way out begin with."""

import pytest
from paddock_testing.internet import Internet, can_make


@pytest.fixture(scope="module")
def internet():
    why = can_make()
    if why:
        pytest.skip(why)
    i = Internet()
    yield i
    i.close()
