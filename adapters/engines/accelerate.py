"""The gradients and logs of transformers' `Trainer` on Hugging Face Accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import PrinterCallback, TrainerCallback

from adapters.toolkit.probe import GradientReader

if TYPE_CHECKING:
    from adapters.toolkit.probe import Records
    from reference.arrays import Gradient


class Watch(TrainerCallback):
    """Keeps the gradient and the log of each optimizer step of a `Trainer`."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.trainer: Any = None
        self._reader: GradientReader | Records[Gradient] | None = None

    def follow(self, trainer: Any) -> None:
        """Register with a trainer, replacing the callback that prints logs."""
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self)
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """Read gradients at each step of the wrapped optimizer, or of DeepSpeed's engine if any."""
        optimizer, model = of_trainer["optimizer"], self.trainer.model_wrapped
        if hasattr(model, "is_gradient_accumulation_boundary"):
            from adapters.engines.deepspeed import gradients_of_steps

            [probe] = [one for one in model.parameters() if one.requires_grad]
            self._reader = gradients_of_steps(model, probe)
        else:
            self._reader = GradientReader(getattr(optimizer, "optimizer", optimizer))

    def on_log(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """Keep a log. The trainer makes one for each step, and a last one for the whole run."""
        self.logs.append({**of_trainer["logs"]})

    def gradients(self) -> list[Gradient]:
        """The gradients of all steps."""
        assert self._reader is not None
        return self._reader.drain()
