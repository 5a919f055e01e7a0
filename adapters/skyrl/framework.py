"""The records of SkyRL's engines: its options as users type them, and what it documents.

Options without a section `trainer` or `generator` are below `trainer.algorithm`.
"""

from __future__ import annotations

from adapters.contract.framework import Substitute
from adapters.contract.job import FaultInjection, Setting
from adapters.contract.tables import RecordFile
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES
from adapters.skyrl import sizes
from adapters.toolkit import settings

TYPE_OF_CORRECTION = "off_policy_correction.tis_ratio_type"

GROUPS = ("group", "prompt", "n_samples_per_prompt")

CONFIGURATIONS: dict[Setting | FaultInjection, tuple[str, ...]] = {
    Setting.MODE: ("loss_reduction",),
    Setting.DIVISOR: ("max_seq_len",),
    Setting.ENTROPY: ("entropy",),
    Setting.KL: ("kl",),
    Setting.BATCH_SIZE: ("batch", *GROUPS),
    Setting.CORRECTION: ("tis", "correction"),
    FaultInjection.GROUP_INCOMPLETE: GROUPS,
}
"""The settings of SkyRL's configuration and of its users' generators, with SkyRL's names. Group
boundaries are missing because only `compute_prompt_boundaries` sets them."""

PERMITTED = {
    "divisor_of_another_mode": "docs/content/docs/harbor and examples/train_integrations/harbor,"
    " which tell users to set max_seq_len in every mode"
}
"""Rules of other frameworks whose opposite SkyRL states."""

_FILE = RecordFile("adapters.skyrl", settings, sizes, critic=Substitute("critic"))

SKYRL = _FILE.record(CPU_AS_CUDA)
FSDP = _FILE.variant("fsdp", base=SKYRL)
MEGATRON = _FILE.variant("megatron", PIPELINE_STAGES, ONE_BY_ONE, base=SKYRL)
