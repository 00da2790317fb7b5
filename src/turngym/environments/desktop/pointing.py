"""Rewards for pointing at the right place of a screen. Boxes are left, top, right, bottom."""

from __future__ import annotations

import math

Box = tuple[float, float, float, float]
Point = tuple[float, float]

IOU_WEIGHT, EDGE_WEIGHT = 0.25, 0.125


def is_hit(point: Point, target: Box) -> bool:
    """Say whether ``point`` lies in ``target``, edges included."""
    x, y = point
    left, top, right, bottom = target
    return left <= x <= right and top <= y <= bottom


def iou(a: Box, b: Box) -> float:
    """Return the area that two boxes share over the area that they cover, in [0, 1]."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, width) * max(0.0, height)
    covered = _area(a) + _area(b) - shared
    return shared / covered if covered > 0 else 0.0


def edge_agreement(predicted: Box, target: Box, width: int, height: int) -> float:
    """Return how near the four edges are, as the harmonic mean of 1 - distance / screen side.

    1 for equal boxes, and 0 once an edge is a whole screen away. Of itself it favours neither
    small nor large boxes, as hits favour small ones and overlap large ones.
    """
    sides = (width, height, width, height)
    near = [1 - abs(p - t) / side for p, t, side in zip(predicted, target, sides, strict=True)]
    if min(near) <= 0:
        return 0.0
    return len(near) / sum(1 / one for one in near)


def box_size_reward(predicted: Box, target: Box, width: int, height: int) -> float:
    """Return the box-size-aware reward of a predicted box, in [0, 1].

    ``(hit + 0.25 iou + 0.125 edges) / 1.375``, where ``hit`` says whether the middle of the
    predicted box lies in the target and ``edges`` is ``edge_agreement``.

    Args:
        predicted: What the agent pointed at; a click is a box without area.
        target: The element's box.
        width: Of the screen, in pixels.
        height: Of the screen, in pixels.

    Source:
        Zhou et al. 2025, GUI-G1, arXiv:2505.15810, with the weights of the authors' code; divided
        by their sum, so that the best reward is 1.
    """
    middle = ((predicted[0] + predicted[2]) / 2, (predicted[1] + predicted[3]) / 2)
    total = (
        float(is_hit(middle, target))
        + IOU_WEIGHT * iou(predicted, target)
        + EDGE_WEIGHT * edge_agreement(predicted, target, width, height)
    )
    return total / (1 + IOU_WEIGHT + EDGE_WEIGHT)


def distance_reward(point: Point, target: Box, width: int, height: int) -> float:
    """Return 1 in the target, and less the farther ``point`` is from it, down to 0.

    Outside it is ``(1 - d)^2 / 2`` with the distance ``d`` to the box as a share of the screen's
    diagonal; so a near miss is worth half of a hit, and every step nearer is worth something.
    """
    if is_hit(point, target):
        return 1.0
    x, y = point
    dx = max(target[0] - x, 0.0, x - target[2])
    dy = max(target[1] - y, 0.0, y - target[3])
    share = min(1.0, math.hypot(dx, dy) / math.hypot(width, height))
    return (1 - share) ** 2 / 2


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])
