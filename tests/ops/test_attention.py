import pytest
import torch

from vitrail.ops import attention, attention_weights


@pytest.mark.parametrize("chunk", [1, 2 * 3 * 7 * 2, 1 << 24])
def test_weights_are_the_softmax_of_scaled_products_whatever_the_chunk(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "CHUNK", chunk)
    query, key = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randn(2, 3, 7, 8, dtype=torch.float64)
    weights = attention_weights(query, key)
    for image in range(2):
        for head in range(3):
            for row in range(5):
                scores = torch.stack([query[image, head, row].dot(key[image, head, col]) for col in range(7)])
                powers = (scores / 8**0.5).exp()
                torch.testing.assert_close(weights[image, head, row], powers / powers.sum())


def test_a_chunk_is_small() -> None:
    assert attention.CHUNK * 4 == 64 * 2**20


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
