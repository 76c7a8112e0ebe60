"""Attention in bfloat16 on a CPU, while something is learned: computed in single precision."""

import torch

from vitrail.ops.attention import fused_attention


def test_halves_that_learn_are_attended_to_in_single_precision() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, 7, 5).bfloat16().requires_grad_() for _ in range(3)]
    may = torch.rand(2, 1, 7, 7) > 0.3
    may |= torch.eye(7, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = fused_attention(parts[0], parts[1], parts[2], may, 0.0)
    assert mixed.dtype == torch.bfloat16
    mixed.backward(torch.ones_like(mixed))
    query, key, value = (part.detach().double().requires_grad_() for part in parts)
    logits = (query @ key.transpose(2, 3) / 5**0.5).masked_fill(~may, -torch.inf)
    wanted = logits.softmax(dim=3) @ value
    assert torch.equal(mixed, wanted.bfloat16())  # rounded once, at the end
    wanted.backward(torch.ones_like(wanted))
    for ours, theirs in zip(parts, (query, key, value), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad.bfloat16(), atol=1e-6, rtol=1e-2)  # pyright: ignore
