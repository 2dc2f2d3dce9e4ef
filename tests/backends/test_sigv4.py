"""Signatures of AWS are those of botocore, for requests that it makes up at random (tests/unit/sigv4_vectors.py)."""

import subprocess

import pytest

from paddock_testing import aws
from paddock_testing import run as paddock

TOP = paddock.TOP
# The unit test's own program, which compares what it is given besides. Its build directory may not be there yet.
SOURCES = ["tests/unit/test_sigv4.c", "src/engine/sigv4.c", "src/link/proof.c",
           *(f"src/base/{name}.c" for name in ("buf", "clock", "err", "fd", "parse", "sha256"))]
VECTORS = TOP / "tests/unit/sigv4_vectors.py"


def test_signatures_are_botocores(tmp_path):
    if not aws.python():
        pytest.skip("no AWS here: moto is not installed: run tests/aws/install")
    program = tmp_path / "test_sigv4"
    subprocess.run(["cc", "-std=gnu17", "-O1", "-D_GNU_SOURCE", f'-DUNIT_CORPUS="{TOP}/tests/fuzz/corpus"',
                    f"-I{TOP}/src", f"-I{TOP}/tests/unit", "-o", program, *(TOP / s for s in SOURCES), "-lcmocka",
                    "-lcrypto"], check=True)
    count = paddock.rounds(500, 20000)
    file = tmp_path / "vectors"
    file.write_bytes(subprocess.run([aws.python(), VECTORS, str(count), "4711"], capture_output=True, check=True).stdout)
    done = subprocess.run([program], env={"SIGV4_VECTORS": str(file), "CMOCKA_MESSAGE_OUTPUT": "TAP"}, text=True,
                          capture_output=True, check=False, timeout=paddock.seconds(300))
    assert done.returncode == 0 and f"{count} more were compared" in done.stdout + done.stderr, done
