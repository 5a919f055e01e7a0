"""Imported by the fork server of tests, so that runs start with all that they need in memory."""

import gc
import os
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points

# As `conformance.ranks.preload` does, before torch is imported.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# No test needs the text that frameworks print when they are imported or the server ends.
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

for name in (
    "conformance.ranks.worker",
    "conformance.runs.generated",
    "conformance.runs.recorder",
    "conformance.runs.settings",
    "conformance.views.versions.diff_formats",
    "hypothesis",
    "tests.broken",
    "tests.broken_rarely",
    "tests.faulty",
):
    import_module(name)

for name in (  # imports of frameworks; a framework whose imports are not installed cannot be run
    "accelerate",
    "aiohttp",
    "datasets",
    "megatron.core.distributed",
    "megatron.core.optimizer",
    "peft",
    "ray",
    "tensordict",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.modeling_flash_attention_utils",
    "transformers.modeling_utils",
):
    with suppress(ImportError):
        import_module(name)

for plugin in entry_points(group="pytest11"):
    plugin.load()

gc.freeze()  # else pytest has all this collected at the end of each run, which takes half a second
