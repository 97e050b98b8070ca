"""The optimizer: AdamW as BERT uses it.

Decay is decoupled and acts on matrices only; gradients are clipped by their global norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertwright.kernels.adamw import adamw_, adamw_rows_, gradient_norm, optimizer_works
from bertwright.kernels.ffi import use_triton
from bertwright.kernels.gpu_linear import keep_copies
from bertwright.kernels.reference import AdamStep
from bertwright.training.distributed import sum_over_ranks
from bertwright.training.divided_weights import divide_like, gather, own_part
from bertwright.training.optimizer_settings import OptimizerSettings as OptimizerSettings


@dataclass(frozen=True)
class Unfreezing:
    """The factor of a learning rate that is 0 before a step."""

    scale: float
    first_step: int
    """Number of steps for which the parameters stay frozen."""

    def __call__(self, step: int) -> float:
        """Return the factor in a step, from 0."""
        return self.scale if step >= self.first_step else 0.0


LRScale = float | Callable[[int], float]  # factor of a learning rate, or a function from the step (from 0) to it


class Optimizer:
    """AdamW over named parameters; its whole state is their moments and the number of steps."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        settings: OptimizerSettings,
        lr_scales: Mapping[str, LRScale] | Mapping[str, float] | None = None,
    ) -> None:
        """Start with zero moments.

        `lr_scales`: factors of the learning rate by parameter, by default 1. If its factor is 0 in a step, a parameter
        and its moments do not change.
        """
        self.parameters = dict(parameters)
        self.settings = settings
        self.steps = 0
        self.param_groups: dict[tuple[LRScale, float], list[str]] = {}
        """Learning-rate scale and weight decay → the names of the parameters that have both."""
        for name, parameter in self.parameters.items():
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            self.param_groups.setdefault(((lr_scales or {}).get(name, 1.0), decay), []).append(name)
        self.active_vectors: dict[str, Tensor] = {}
        """For embeddings with sparse gradients, one uint8 per vector: 1 if it had a gradient in any step so far."""
        self.exp_avg = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}
        self.exp_avg_sq = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}
        self.is_divided = False
        """True if this rank has only parts of the parameters and moments."""
        keep_copies(self.parameters.values())

    def divide(self, model: nn.Module) -> None:
        """Continue with the parameters of a model that `shard` has divided, and with this rank's part of the moments.

        `model`: has parameters of the same names and values.
        """
        self.is_divided = True
        for name, parameter in model.named_parameters():
            if name in self.parameters:
                self.parameters[name] = parameter
                self.exp_avg[name] = divide_like(self.exp_avg[name], parameter)
                self.exp_avg_sq[name] = divide_like(self.exp_avg_sq[name], parameter)

    @property
    def unfreezing_steps(self) -> list[int]:
        """Return the steps in which frozen parameters begin to be trained, in ascending order."""
        return sorted({scale.first_step for scale, _ in self.param_groups if isinstance(scale, Unfreezing)})

    @property
    def checks_on_gpu(self) -> bool:
        """True if a step with a norm of NaN changes nothing, so that a step need not wait for its norm."""
        moments = [*self.exp_avg.values()]
        return bool(moments) and use_triton(*moments) and optimizer_works(moments[0])

    def gradient_norm(self) -> Tensor:
        """Return the Euclidean norm of all gradients together, a scalar; it is not finite if one of them is not.

        Parameters whose rate is 0 in this step do not count: their gradients are not used.
        """
        for (lr_scale, _), names in self.param_groups.items():
            if callable(lr_scale) and lr_scale(self.steps) == 0:
                for name in names:
                    self.parameters[name].grad = None
        gradients = []
        for parameter in self.parameters.values():
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse:
                gradient = parameter.grad = gradient.coalesce()  # once for the norm and the step
                gradient = gradient.values()
            if gradient is not None:
                gradients.append(own_part(gradient))
        if not self.is_divided:
            return gradient_norm(gradients)
        device = next(iter(self.exp_avg.values())).device
        return sum_over_ranks(gradient_norm(gradients).to(device).square()).sqrt()

    def step(self, learning_rate: float, norm: float | Tensor) -> None:
        """Update all parameters that have a gradient, and clear the gradients; `norm` is `gradient_norm()`."""
        clip_scale: float | Tensor
        if isinstance(norm, Tensor) and self.checks_on_gpu:
            clip_scale = (self.settings.max_grad_norm / norm.clamp(min=1e-30)).clamp(max=1.0).float()
        else:
            clip_scale = min(1.0, self.settings.max_grad_norm / max(float(norm), 1e-30))
        self.steps += 1
        settings = self.settings
        corrected = settings.bias_correction
        for (lr_scale, decay), names in self.param_groups.items():
            scale = lr_scale(self.steps - 1) if callable(lr_scale) else lr_scale
            # Moments start when their parameters are unfrozen, and so does the correction of their bias.
            steps = self.steps - (lr_scale.first_step if isinstance(lr_scale, Unfreezing) else 0)
            update = AdamStep(
                lr=learning_rate * scale,
                beta1=settings.beta1,
                beta2=settings.beta2,
                eps=settings.eps,
                weight_decay=decay,
                clip_scale=clip_scale,
                correction1=1.0 - settings.beta1**steps if corrected and steps > 0 else 1.0,
                correction2=1.0 - settings.beta2**steps if corrected and steps > 0 else 1.0,
            )
            dense: dict[str, Tensor] = {}  # gradients by name
            for name in names:
                parameter = self.parameters[name]
                gradient, parameter.grad = parameter.grad, None
                if gradient is None or scale == 0:
                    continue
                if gradient.is_sparse:
                    self._update_sparse(name, gradient, update)
                elif (own := own_part(gradient)).numel():  # a rank may have no row of a small parameter
                    dense[name] = own
                    self.active_vectors.pop(name, None)
            adamw_(
                [own_part(self.parameters[name]) for name in dense],
                list(dense.values()),
                [self.exp_avg[name] for name in dense],
                [self.exp_avg_sq[name] for name in dense],
                update,
            )

    def _update_sparse(self, name: str, gradient: Tensor, update: AdamStep) -> None:
        moments = self.exp_avg[name], self.exp_avg_sq[name]
        if name not in self.active_vectors:
            self.active_vectors[name] = ((moments[0] != 0) | (moments[1] != 0)).any(1).to(torch.uint8)
        adamw_rows_(self.parameters[name], gradient, *moments, self.active_vectors[name], update)

    def state(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs, as named tensors.

        Divided moments are gathered on rank 0; all ranks must call this together, and get empty tensors there.
        """
        kinds = {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
        moments = {
            f"{kind}.{name}": gather(tensor, self.parameters[name]) if self.is_divided else tensor
            for kind, tensors in kinds.items()
            for name, tensor in tensors.items()
        }
        return moments | {"steps": torch.tensor(self.steps)}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned; raises ValueError for names or shapes of another model."""
        own = self.state()
        if own.keys() != state.keys():
            different = sorted(own.keys() ^ state.keys())
            raise ValueError(
                f"the optimizer state belongs to another model: {len(different)} names differ, e.g. {different[0]}"
            )
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                raise ValueError(
                    f"the optimizer state belongs to another model: {name}: expected {list(tensor.shape)}, got "
                    f"{list(state[name].shape)}"
                )
            tensor.copy_(state[name])
        self.active_vectors.clear()
        self.steps = int(state["steps"])


def make_optimizer(
    model: nn.Module,
    settings: OptimizerSettings,
    lr_scales: Mapping[str, LRScale] | Mapping[str, float] | None = None,
) -> Optimizer:
    """Return the optimizer of a model's trained parameters; freeze each parameter whose rate has the factor 0."""
    trained = {}
    for name, parameter in model.named_parameters():
        if lr_scales is not None:
            parameter.requires_grad_(lr_scales[name] != 0)
        if parameter.requires_grad:
            trained[name] = parameter
    return Optimizer(trained, settings, lr_scales)
