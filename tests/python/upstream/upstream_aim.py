"""Aims PyTorch's own distributed tests at another backend: its name stands where Gloo's stood.

The tests decide by literals what to run (``BACKEND != "gloo"``, ``require_backend_is_available(
{"gloo"})``, ``dist.Backend.GLOO``), so the literals are replaced in the syntax tree of the module
that ships in torch's wheel. Line numbers stay, so tracebacks point into the installed file.
"""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import sys
import types

STAND_IN = "gloo"
SUITE = "torch.testing._internal.distributed.distributed_test"

# Tests that no plug-in can pass, and why.
NOT_FOR_PLUGINS = {
    "test_ddp_logging_data_cpu": "DDP's log calls every plug-in 'custom'",
}


class _Renamer(ast.NodeTransformer):
    def __init__(self, backend: str) -> None:
        self.backend = backend

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value == STAND_IN:
            return ast.copy_location(ast.Constant(self.backend), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr == STAND_IN.upper() and ast.unparse(node.value).endswith("Backend"):
            return ast.copy_location(ast.Constant(self.backend), node)
        return self.generic_visit(node)


def load(name: str, path: pathlib.Path, backend: str) -> types.ModuleType:
    """Runs the module at ``path`` as ``name`` with ``backend`` in Gloo's place."""
    tree = ast.parse(path.read_text(), str(path))
    if backend != STAND_IN:
        tree = ast.fix_missing_locations(_Renamer(backend).visit(tree))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(tree, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def load_suite(backend: str) -> types.ModuleType:
    spec = importlib.util.find_spec(SUITE)
    assert spec is not None
    assert spec.origin is not None
    return load(SUITE, pathlib.Path(spec.origin), backend)


def patch_torch(backend: str) -> None:
    """What torch itself ties to Gloo's name and a plug-in offers under its own."""
    from torch.testing._internal.common_distributed import DistTestCases

    for table in (DistTestCases.backend_feature, DistTestCases.skip_collective):
        for names in table.values():
            if STAND_IN in names:
                names.add(backend)
    if backend == "q7x2":
        import torch.distributed as dist

        def monitored_barrier(*args: object, **kwargs: object) -> None:
            import q7x2

            q7x2.monitored_barrier(*args, **kwargs)

        dist.monitored_barrier = monitored_barrier
