import functools

import pytest
import torch

from vitrail.ops import attention_chunks
from vitrail.ops.attention import attend
from vitrail.ops.attention_chunks import attention_weights


@pytest.mark.parametrize("chunk", [1, 2 * 3 * 7 * 2, 1 << 24])
def test_weights_are_the_softmax_of_scaled_products_whatever_the_chunk(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_chunks, "CHUNK", chunk)
    query, key = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randn(2, 3, 7, 8, dtype=torch.float64)
    weights = attention_weights(query, key)
    for image in range(2):
        for head in range(3):
            for row in range(5):
                scores = torch.stack([query[image, head, row].dot(key[image, head, col]) for col in range(7)])
                powers = (scores / 8**0.5).exp()
                torch.testing.assert_close(weights[image, head, row], powers / powers.sum())


def test_a_chunk_is_small() -> None:
    assert attention_chunks.CHUNK * 4 == 64 * 2**20


def test_half_precision_is_weighed_in_float32() -> None:
    query, key = torch.randn(1, 2, 5, 8).bfloat16(), torch.randn(1, 2, 5, 8).bfloat16()
    weights = attention_weights(query, key)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, attention_weights(query.float(), key.float()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(attention_weights(query, key), weights)


def test_gradients_flow_through_the_weights() -> None:
    query = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attention_weights, (query, key))


def _keep(sizes: list[int], tensor: torch.Tensor) -> torch.Tensor:
    sizes.append(tensor.numel())
    return tensor


@pytest.mark.parametrize("relative", [False, True])
def test_chunks_give_the_same_gradients_and_keep_no_matrix(relative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(3, 2, 2, 97, 8, dtype=torch.float64).unbind(0)
    offsets = torch.randn(2 * 97 - 1, 2, 8, dtype=torch.float64) if relative else None
    leaves = [tensor for tensor in (query, key, value, offsets) if tensor is not None]
    results = []
    for chunk in (1 << 24, 1 << 11):
        monkeypatch.setattr(attention_chunks, "CHUNK", chunk)
        for leaf in leaves:
            leaf.requires_grad_().grad = None
        torch.manual_seed(3)
        kept: list[int] = []
        keep = functools.partial(_keep, kept)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            mixed = attend(query, key, value, dropout=0.0 if relative else 1e-12, pairs=offsets)
        mixed.square().sum().backward()
        results.append([mixed.detach(), *[leaf.grad for leaf in leaves]])
        if chunk == 1 << 11:
            assert max(kept) < 2 * 2 * 97 * 97
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked)


def test_dropout_on_the_cpu_drops_weights_and_keeps_the_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_chunks, "CHUNK", 1 << 11)
    query, key = torch.randn(2, 4, 2, 64, 8).unbind(0)
    value = torch.ones(4, 2, 64, 8)
    mixed = attend(query, key, value, dropout=0.5, pairs=None)
    assert abs(mixed.mean().item() - 1) < 0.05
    assert mixed.std() > 0.05
