"""vocab_loss against torch's cross_entropy, gradients by autograd."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.functional import cross_entropy

from steppe.ops import vocab_loss

KINDS = ["auto", "tiled", "ring", "vocab_parallel", "full"]


def batch(tokens: int, hidden: int, vocab: int, dtype: torch.dtype, ignored: int = 0):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(tokens, hidden, generator=generator).to(dtype)
    weight = torch.randn(vocab, hidden, generator=generator).to(dtype)
    targets = torch.randint(0, vocab, (tokens,), generator=generator)
    targets[torch.randperm(tokens, generator=generator)[:ignored]] = -100
    return x, weight, targets


def with_gradients(x, weight, loss_of):
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = loss_of(x, weight)
    loss.backward()
    return loss.detach(), x.grad, weight.grad


def in_fp64(x, weight, targets, factor=1.0, softcap=0.0, z_loss_coeff=0.0):
    def loss_of(x, weight):
        logits = x @ weight.T
        if softcap > 0:
            logits = softcap * torch.tanh(logits / softcap)
        loss = cross_entropy(logits, targets)
        kept = logits[targets != -100]
        return factor * (loss + z_loss_coeff * kept.logsumexp(1).square().mean())

    return with_gradients(x.double(), weight.double(), loss_of)


def expect_close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> None:
    """Within the rounding of the working precision, of the largest value."""
    bound = scale * {torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    error = (got.double() - want).abs().max()
    assert error <= bound * want.abs().max(), f"off by {error:.3g}, of {want.abs().max():.3g}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_cross_entropy(kind, dtype):
    x, weight, targets = batch(37, 24, 101, dtype, ignored=5)
    # The gradient from above is not one.
    got = with_gradients(x, weight, lambda x, w: -2.5 * vocab_loss(x, w, targets, kind=kind, tile_tokens=8))
    want = in_fp64(x, weight, targets, factor=-2.5)
    assert got[0].dtype == torch.float32
    assert [grad.dtype for grad in got[1:]] == [dtype, dtype]
    for one, other in zip(got, want, strict=True):
        expect_close(one, other, dtype)


def test_soft_cap_and_z_loss():
    x, weight, targets = batch(19, 16, 50, torch.float32, ignored=3)
    shape = {"softcap": 3.0, "z_loss_coeff": 1e-2}
    got = with_gradients(x, weight, lambda x, w: vocab_loss(x, w, targets, **shape))
    for one, other in zip(got, in_fp64(x, weight, targets, **shape), strict=True):
        expect_close(one, other, torch.float32)


def test_row_weights_and_strided_input():
    x, weight, targets = batch(22, 16, 33, torch.float32)
    row_weight = torch.linspace(0, 2, 11)
    got = with_gradients(x, weight, lambda x, w: vocab_loss(x[::2], w, targets[::2], row_weight=row_weight))
    want = with_gradients(
        x.double(),
        weight.double(),
        lambda x, w: (row_weight * cross_entropy(x[::2] @ w.T, targets[::2], reduction="none")).sum(),
    )
    for one, other in zip(got, want, strict=True):
        expect_close(one, other, torch.float32)


def test_a_linear_layer_learns_as_with_cross_entropy():
    x, weight, targets = batch(64, 16, 40, torch.float32)
    losses = []
    for loss_of in (vocab_loss, lambda x, w, t: cross_entropy(x @ w.T, t)):
        parameter = torch.nn.Parameter(0.1 * weight)
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        losses.append([])
        for _ in range(20):
            optimizer.zero_grad()
            loss = loss_of(torch.tanh(x), parameter, targets)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][0] - losses[0][-1] > 0.5
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_only_what_is_asked_for():
    x, weight, targets = batch(9, 8, 20, torch.float32)
    with torch.no_grad():
        loss = vocab_loss(x.requires_grad_(), weight, targets)
    assert not loss.requires_grad
    vocab_loss(x, weight, targets).backward()
    assert x.grad is not None
    assert weight.grad is None


def test_backward_once():
    x, weight, targets = batch(9, 8, 20, torch.float32)
    loss = vocab_loss(x.requires_grad_(), weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward must be called once"):
        loss.backward()


def test_mistakes_are_named():
    x, weight, targets = batch(9, 8, 20, torch.float32)
    with pytest.raises(ValueError, match="kind must be auto"):
        vocab_loss(x, weight, targets, kind="fused")
    with pytest.raises(ValueError, match=r"weight must be a contiguous Float \[20, 8\]"):
        vocab_loss(x, weight.bfloat16(), targets)
    with pytest.raises(ValueError, match="vocab_size"):
        vocab_loss(x, weight, targets, group=object())


def _rank_of_two(rank: int, folder: str, library: str) -> None:
    torch.set_num_threads(1)
    torch.ops.load_library(library)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    x, weight, targets = batch(21, 16, 41, torch.float32, ignored=4)
    rows, columns = [slice(0, 8), slice(8, 21)][rank], [slice(0, 21), slice(21, 41)][rank]
    want = in_fp64(x, weight, targets, factor=3.0)
    for kind in ("tiled", "ring", "vocab_parallel", "full"):
        loss, dx, dw = with_gradients(
            x[rows],
            weight[columns],
            lambda x, w, kind=kind: (
                3.0
                * vocab_loss(
                    x, w, targets[rows], kind=kind, tile_tokens=5, vocab_size=41, group=dist.group.WORLD
                )
            ),
        )
        dist.all_reduce(loss)
        for one, other in ((loss, want[0]), (dx, want[1][rows]), (dw, want[2][columns])):
            expect_close(one, other, torch.float32)
    dist.destroy_process_group()


def test_two_ranks_share_the_vocabulary(tmp_path):
    library = next(path for path in torch.ops.loaded_libraries if "steppe" in path)
    torch.multiprocessing.spawn(_rank_of_two, args=(str(tmp_path), library), nprocs=2)
