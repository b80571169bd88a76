"""What a run shows of its inside: gradient norms by part of the model, and whether routing routes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from capsnmt.data.batches import valid_batches
from capsnmt.data.store import Store
from capsnmt.models.contract import TranslationModel


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """Norm of the gradient of each part, as the last update saw it (after clipping)."""
    parts = {name: list(part.parameters()) for name, part in model.named_children()}
    parts |= {name: [parameter] for name, parameter in model.named_parameters(recurse=False)}
    norms = {}
    for name, parameters in parts.items():
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            norms[name] = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
    return norms


class RoutingMeter:
    """Looks at the coefficients of a few validation sentences, always the same: short, middling and long ones."""

    def __init__(self, valid: Store, *, batch_tokens: int, device: torch.device) -> None:
        self._batches = []
        by_length = list(valid_batches(valid, batch_tokens))
        for place in sorted({len(by_length) * sixth // 6 for sixth in (1, 3, 5)}):
            batch = by_length[place]
            arrays = (batch.source, batch.source_mask)
            self._batches.append(tuple(torch.from_numpy(array).to(device) for array in arrays))

    def __call__(self, model: TranslationModel) -> dict[str, float]:
        """Nothing for a system that does not route. Leaves the model in training mode."""
        model.eval()
        found = []
        with torch.inference_mode():
            for source, mask in self._batches:
                coefficients = model.routing(source, mask)
                if coefficients is not None:
                    found.append(coefficients.transpose(1, 2)[mask])  # (tokens, iterations, M)
        model.train()
        return describe_routing(torch.cat(found)) if found else {}


def describe_routing(alpha: Tensor) -> dict[str, float]:
    """Coefficients (tokens, iterations, M) → how sharp each iteration is, and how the last one uses the capsules.

    entropy_t: mean entropy of a token's coefficients over log M (1 = uniform, 0 = one capsule takes all);
    spread_t: standard deviation over the capsules of a token's logits b; used: exp of the entropy of the mean
    coefficients, the effective number of capsules; largest: the share of the capsule that takes most.
    """
    M = alpha.size(-1)
    report = {}
    for t in range(alpha.size(1)):
        logs = alpha[:, t].clamp(min=1e-30).log()  # b up to a constant for each token
        entropy = -(alpha[:, t] * logs).sum(dim=-1).mean().item()
        report[f"entropy_{t + 1}"] = entropy / math.log(M) if M > 1 else 0.0
        report[f"spread_{t + 1}"] = logs.std(dim=-1, correction=0).mean().item()
    share = alpha[:, -1].mean(dim=0)  # (M,)
    report["used"] = math.exp(-(share * share.clamp(min=1e-30).log()).sum().item())
    report["largest"] = share.max().item()
    return report
