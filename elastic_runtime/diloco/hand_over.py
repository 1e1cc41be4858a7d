"""What a rank that begins in the middle is given: how far the others are, and an optimizer's state.

Values go from one rank to all. The state of the inner optimizer, which is as large as the model or
twice that, goes along a chain of the new ranks, so that no rank sends it twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.parts.commit_image import CommitImage, check_image, forms_of, take_image
from elastic_runtime.worker.recovery.state_transfer import (
    MESSAGE_BYTES,
    Messages,
    TransferGroup,
    plan,
    relay,
    spread,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.parts.optimizer_part import OptimizerPart
    from elastic_runtime.worker.peers import Peers

Image = tuple[dict[str, Any], list[torch.Tensor]]


def transfer_group(peers: Peers) -> TransferGroup:
    """The collectives of these ranks, which nothing else uses meanwhile."""
    assert peers.group is not None
    wire = peers.group._get_backend(torch.device("cpu"))
    return TransferGroup(wire, peers.rank, peers.world)


def tell_all(group: TransferGroup, image: Image | None, root: int) -> Image:
    """Gives all ranks what one has.

    Args:
        group: all ranks.
        image: plain JSON with the forms of the tensors, and these; None where it is received.
        root: the rank that has it.
    """
    meta, tensors = image or ({}, [])
    meta = group.tell(meta, root)
    if image is None:
        tensors = [form.empty() for form in forms_of(meta)]
    spread(Messages(tensors, plan(_sizes(meta), MESSAGE_BYTES)), group, root)
    return meta, tensors


def hand_on(
    group: TransferGroup, inner: OptimizerPart, giver: int, receivers: Sequence[int]
) -> None:
    """Gives new ranks the state of the inner optimizer of another one.

    It is called on all ranks. What a rank receives takes the place of what it had.

    Args:
        group: all ranks.
        inner: of this rank.
        giver: whose state.
        receivers: who gets it.

    Raises:
        UsageError: the inner optimizers have other parameters on this rank.
    """
    tensors: list[torch.Tensor] = []
    meta: dict[str, Any] = {}
    if group.rank == giver:
        meta, tensors = CommitImage.of([inner])
    meta = group.tell(meta, giver)
    chain = [giver, *receivers]
    if group.rank not in chain:
        return
    if group.rank != giver:
        check_image([inner], meta)
        tensors = [form.empty() for form in forms_of(meta)]
    at = chain.index(group.rank)
    before = chain[at - 1] if at else None
    after = chain[at + 1] if at + 1 < len(chain) else None
    relay(Messages(tensors, plan(_sizes(meta), MESSAGE_BYTES)), group.wire, before, after)
    if group.rank != giver:
        take_image([inner], meta, tensors)


def _sizes(meta: dict[str, Any]) -> list[int]:
    return [form.nbytes for form in forms_of(meta)]
