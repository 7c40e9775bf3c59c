"""Interpreters that have a peer, each in an environment of its own, so that its demands on versions bind nobody.

    python bench/peers.py tensorflowonspark      makes it, if need be, and prints where it is

They are made once and kept below the cache folder, $GRIDFLOW_TEST_CACHE.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

#: TensorFlowOnSpark imports pkg_resources, which later versions of setuptools do not have, and does not say that it
#: needs six.
PEERS = {
    "spark-tensorflow-distributor": ["spark-tensorflow-distributor==0.0.3"],
    "tensorflowonspark": ["tensorflowonspark==2.2.5", "setuptools<81", "six", "packaging"],
    "tfrecord": ["tfrecord==1.14.6", "crc32c==2.8"],
    "tfx_bsl": ["tfx-bsl==1.21.0", "tensorflow-metadata==1.21.0"],
}
INSTALL_SECONDS = 900


def peer_python(peer: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return an interpreter that has a peer and, apart from what it needs otherwise, the packages of this one."""
    packages = PEERS[peer]
    folder = _cache(environ) / f"{packages[0].replace('==', '-')}-python{sysconfig.get_python_version()}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists() or ready.read_text() != " ".join(packages):
        print(f"making the environment of {packages[0]} in {folder}", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, *packages], check=True, timeout=INSTALL_SECONDS, stdout=sys.stderr)
        ready.write_text(" ".join(packages))
    # Written each time: the clone may be another one.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages_of_the_clone.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _cache(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("GRIDFLOW_TEST_CACHE", "~/.cache/gridflow-test")).expanduser()


def main() -> None:
    """Print the interpreter of one peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(PEERS))
    print(peer_python(parser.parse_args().peer))


if __name__ == "__main__":
    main()
