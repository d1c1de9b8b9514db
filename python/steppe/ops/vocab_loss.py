"""Output projection and cross entropy without logits."""

import torch
import torch.distributed

from steppe.ops.library import load_library


def vocab_loss(
    x: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    row_weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    kind: str = "auto",
    circulate: str = "auto",
    tile_tokens: int = 0,
    softcap: float = 0.0,
    z_loss_coeff: float = 0.0,
    vocab_size: int | None = None,
    group: "torch.distributed.ProcessGroup | None" = None,
) -> torch.Tensor:
    """cross_entropy(x @ weight.T, targets), an fp32 scalar, without ever holding the logits.

    x [N, H] and weight [V, H] in fp32 or bf16; targets [N], any integer dtype, `ignore_index` for none. The
    loss is the sum of row_weight · row loss; without row_weight, the mean over the rows with a target. kind,
    circulate, tile_tokens, softcap and z_loss_coeff are those of a recipe's `loss` section.

    The forward computes both gradients and keeps them (N·H values and fp32 V·H); backward scales them, and
    can be called once. No gradients are computed under torch.no_grad, where a z-loss is left out.

    With `group`, whose P ranks each call this with their own rows, weight is this rank's share [v, H] of a
    vocabulary of `vocab_size` (the first V mod P ranks have one column more), and the loss is the share of
    this rank's rows: the mean is over the rows of all, and shares add up to the loss. The gradient from above
    must be the same on all ranks.
    """
    if group is not None and vocab_size is None:
        raise ValueError("vocab_loss needs vocab_size with a group: weight is only this rank's share of it")
    load_library()
    kept = targets != ignore_index
    if row_weight is None:
        count = kept.sum()
        if group is not None:
            torch.distributed.all_reduce(count, group=group)
        row_weight = kept.to(torch.float32) / count
    return torch.ops.steppe.vocab_loss(
        x,
        weight,
        torch.where(kept, targets, -1).to(torch.int32),
        row_weight.detach(),
        weight.shape[0] if vocab_size is None else vocab_size,
        kind=kind,
        circulate=circulate,
        tile_tokens=tile_tokens,
        softcap=softcap,
        z_loss_coeff=z_loss_coeff,
        group=None if group is None else group.boxed(),
    )
