"""Which modules can be a pipeline stage, and which of their layers may wait with W.

Almost any module of standard layers can: `nn.Linear` defers its weight gradient to W, everything else (embeddings,
norms, convolutions, attention, dropout) gets its gradient in D by plain autograd. What would train wrongly or break in
the middle of a run is refused before it starts, by the name of the layer that is at fault.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from crosspipe.errors import FieldError

# by the full name of the class, so that nothing is imported for modules that are not there
_WRAPPERS = {
    "torch._dynamo.eval_frame.OptimizedModule": ("is compiled as a whole", "pass the module itself, not torch.compile"),
    "torch.nn.parallel.distributed.DistributedDataParallel": (
        "synchronises gradients by hooks that deferred weights do not run",
        "pass the module itself; replicas are reduced by the engine",
    ),
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": (
        "gathers its parameters by hooks that deferred weights do not run",
        "pass the module itself; the engine can shard the optimizer's state",
    ),
}


def check_stage(stage: nn.Module, *, recompute: bool = False) -> None:
    """Raises FieldError, naming the layer, for a module that cannot be a stage."""
    for name, module in stage.named_modules():
        found = _fault(module, recompute)
        if found is not None:
            wrong, remedy = found
            raise FieldError(f"stage.{name}" if name else "stage", type(module).__name__, wrong, remedy)


def is_deferrable(module: nn.Module) -> bool:
    """Whether W of this layer can wait: a plain `nn.Linear` that owns its weight, with nothing hooked to it.

    Subclasses may compute something else; pruning and the old weight_norm put a computed weight in the parameter's
    place, which needs its gradient in D.
    """
    if type(module) is not nn.Linear:
        return False
    weight = module._parameters.get("weight")
    return weight is not None and not weight._backward_hooks and not weight._post_accumulate_grad_hooks


def _fault(module: nn.Module, recompute: bool) -> tuple[str, str] | None:
    """What is wrong with one layer and what to do, or None."""
    kind = type(module)
    full_name = f"{kind.__module__}.{kind.__qualname__}"
    if full_name in _WRAPPERS:
        return _WRAPPERS[full_name]
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled as a whole", "pass the module itself, not its TorchScript"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "has no weights yet", "run it once on an example, or give its input size"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        return "gives sparse gradients, which are neither clipped nor reduced", "use sparse=False"
    if recompute and isinstance(module, _BatchNorm) and module.training and module.track_running_stats:
        return (
            "would count every microbatch twice when it is recomputed",
            "use track_running_stats=False, or no recompute",
        )
    return None
