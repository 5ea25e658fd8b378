"""What the package offers can be imported from it, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys

import nplt_storage


def test_every_public_name_is_there() -> None:
    for name in nplt_storage.__all__:
        assert getattr(nplt_storage, name).__name__ == name


def test_importing_the_package_loads_no_other_module_of_it() -> None:
    code = "import sys, nplt_storage; print([m for m in sys.modules if 'nplt_storage.' in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
