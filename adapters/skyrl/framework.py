"""The records of SkyRL's engines: SkyRL's options as users type them, and SkyRL's documents.

Options without a section `trainer` or `generator` are below `trainer.algorithm`.
"""

from __future__ import annotations

from adapters.contract.framework import Substitute
from adapters.contract.tables import RecordFile
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES
from adapters.skyrl import sizes
from adapters.toolkit import settings

TYPE_OF_CORRECTION = "off_policy_correction.tis_ratio_type"

_FILE = RecordFile("adapters.skyrl", settings, sizes, critic=Substitute("critic"))

SKYRL = _FILE.record(CPU_AS_CUDA)
FSDP = _FILE.variant("fsdp", base=SKYRL)
MEGATRON = _FILE.variant("megatron", PIPELINE_STAGES, ONE_BY_ONE, base=SKYRL)
