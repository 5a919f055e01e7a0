"""What a training rank takes from the object store."""

from typing import Any

from miles.utils import object_store


def process_rollout_data(references: list[Any], dp_rank: int) -> Any:
    return object_store.get_instance().get(references[dp_rank])
