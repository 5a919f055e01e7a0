"""The adapters of NVIDIA-NeMo/RL: one for each DTensor worker, the worker of its examples first."""

from adapters.nemo_rl.adapter import DTensorV1Adapter, DTensorV2Adapter

ENGINES = (DTensorV2Adapter, DTensorV1Adapter)
