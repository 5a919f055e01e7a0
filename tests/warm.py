"""Imported by the fork server of tests, so that forked runs have their imports in memory."""

import gc
import os
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points

# Set before torch is imported, as `conformance.ranks.preload` does.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# No test needs the text that frameworks print when they are imported or when the server ends.
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

for name in (  # imports of frameworks, as far as they are installed
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

gc.freeze()  # otherwise pytest's garbage collection takes half a second more in each run
