"""AdamW as BERT uses it: decoupled decay on matrices only, clipping by the global norm, bias correction on or off."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bertwright.kernels.fused_ops import AdamStep, adamw_, adamw_rows_, gradient_norm
from bertwright.training.settings import OptimizerSettings as OptimizerSettings


class AdamW:
    """AdamW over named parameters; its whole state is two tensors a parameter and the number of steps."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        settings: OptimizerSettings,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        """`factors`: what each parameter's rate is multiplied by, 1 for those that it does not name."""
        self.parameters = dict(parameters)
        self.settings = settings
        self.steps = 0
        self.param_groups: dict[tuple[float, float], list[str]] = {}
        """Rate factor and weight decay → the names of the parameters that have both."""
        for name, parameter in self.parameters.items():
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            self.param_groups.setdefault(((factors or {}).get(name, 1.0), decay), []).append(name)
        self.active_rows: dict[str, Tensor] = {}
        """Which rows of a table had a gradient in any step, for tables with sparse gradients."""
        self.exp_avg = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}
        self.exp_avg_sq = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}

    def gradient_norm(self) -> float:
        """The Euclidean norm of all gradients together; not finite as soon as one of them is not."""
        gradients = []
        for parameter in self.parameters.values():
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse:
                gradient = parameter.grad = gradient.coalesce()  # once for the norm and the step
                gradient = gradient.values()
            if gradient is not None:
                gradients.append(gradient)
        return gradient_norm(gradients)

    def step(self, learning_rate: float, norm: float) -> None:
        """Move every parameter that has a gradient, and forget the gradients. `norm` is `gradient_norm()`."""
        self.steps += 1
        settings = self.settings
        corrected = settings.bias_correction
        for (factor, decay), names in self.param_groups.items():
            update = AdamStep(
                lr=learning_rate * factor,
                beta1=settings.beta1,
                beta2=settings.beta2,
                eps=settings.eps,
                weight_decay=decay,
                clip_scale=min(1.0, settings.max_grad_norm / max(norm, 1e-30)),
                correction1=1.0 - settings.beta1**self.steps if corrected else 1.0,
                correction2=1.0 - settings.beta2**self.steps if corrected else 1.0,
            )
            dense: dict[str, Tensor] = {}  # by name, the gradients
            for name in names:
                parameter = self.parameters[name]
                gradient, parameter.grad = parameter.grad, None
                if gradient is not None and gradient.is_sparse:
                    self._move_rows(name, gradient, update)
                elif gradient is not None:
                    dense[name] = gradient
                    self.active_rows.pop(name, None)
            adamw_(
                [self.parameters[name] for name in dense],
                list(dense.values()),
                [self.exp_avg[name] for name in dense],
                [self.exp_avg_sq[name] for name in dense],
                update,
            )

    def _move_rows(self, name: str, gradient: Tensor, update: AdamStep) -> None:
        moments = self.exp_avg[name], self.exp_avg_sq[name]
        if name not in self.active_rows:
            self.active_rows[name] = ((moments[0] != 0) | (moments[1] != 0)).any(1).to(torch.uint8)
        adamw_rows_(self.parameters[name], gradient, *moments, self.active_rows[name], update)

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as named tensors."""
        moments = {f"exp_avg.{name}": tensor for name, tensor in self.exp_avg.items()}
        moments |= {f"exp_avg_sq.{name}": tensor for name, tensor in self.exp_avg_sq.items()}
        return moments | {"steps": torch.tensor(self.steps)}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave; raises ValueError where names or shapes are another model's."""
        own = self.state()
        if own.keys() != state.keys():
            odd = sorted(own.keys() ^ state.keys())
            raise ValueError(f"the optimizer state belongs to another model: {len(odd)} names differ, e.g. {odd[0]}")
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                raise ValueError(
                    f"the optimizer state belongs to another model: {name} is {list(state[name].shape)}, "
                    f"{list(tensor.shape)} expected"
                )
            tensor.copy_(state[name])
        self.active_rows.clear()
        self.steps = int(state["steps"])
