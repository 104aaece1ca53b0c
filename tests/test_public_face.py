"""What `import crosspipe` offers: every name is there, typed and light to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import crosspipe


def test_every_public_name_is_there_and_known_to_type_checkers() -> None:
    source = ast.parse(Path(crosspipe.__file__).read_text())
    typed = next(node for node in source.body if isinstance(node, ast.If))
    names = [alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(names) == sorted(crosspipe.__all__)
    for name in crosspipe.__all__:
        assert getattr(crosspipe, name).__doc__, name


def test_importing_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'numba', 'torch', 'ortools', 'matplotlib', 'polars', 'hydra', 'submitit', 'mpi4py', 'rich'}"
    code = f"import sys, crosspipe; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
