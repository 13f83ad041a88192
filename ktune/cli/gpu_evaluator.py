"""The evaluator of this machine's GPU, with the builder that it owns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ktune.build.builder import Builder
from ktune.cli.machine import target_of
from ktune.core.loading import LoadedFamily
from ktune.core.model import Variant
from ktune.gpu.cuda_evaluator import CudaEvaluator
from ktune.gpu.nvml import GpuInfo
from ktune.gpu.pool import CUDA_BACKEND


class GpuEvaluator(CudaEvaluator):
    """A CudaEvaluator that knows its GPU's model and target at once, and closes its builder with itself."""

    backend = CUDA_BACKEND

    def __init__(
        self, loaded: LoadedFamily, builder: Builder, gpu: GpuInfo, log_dir: Path, on_event: Callable[[str], None]
    ) -> None:
        self.gpu_name = gpu.name
        self.target = target_of(gpu)
        self._own_builder = builder
        super().__init__(loaded, builder, gpu=gpu.uuid, backend=self.backend, log_dir=log_dir, on_event=on_event)

    def build_key(self, variant: Variant) -> str:
        """The digest of everything that this variant's binary depends on."""
        return self._own_builder.key(variant)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._own_builder.close()
