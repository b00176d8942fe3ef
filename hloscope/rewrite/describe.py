"""What a planner has to know of a step before anything is changed: its arrays, its mesh, its rules, its dead rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hloscope.rewrite.leaves import Leaf, argument_leaves, twins
from hloscope.rewrite.rows import RowCluster, find_row_clusters

if TYPE_CHECKING:
    from hloscope.capture.worker import Built


def describe(built: Built, options: dict[str, Any]) -> dict[str, Any]:
    """Arrays by name with shape and mesh axes, sizes of the mesh axes, and the rule sets that are offered."""
    del options
    leaves = argument_leaves(built.step)
    sizes = {
        axis: size
        for leaf in leaves
        if leaf.sharding is not None
        for axis, size in leaf.sharding.mesh.shape.items()
    }
    return {
        "leaves": [_leaf(leaf, leaves) for leaf in leaves],
        "mesh": sizes,
        "rule_sets": {name: dict(changes) for name, changes in built.spec.rule_sets.items()},
        "clusters": [_cluster(c) for c in find_row_clusters(built.step).clusters],
    }


def _cluster(cluster: RowCluster) -> dict[str, Any]:
    return {
        "key": cluster.key,
        "kernel": cluster.kernel,
        "refusal": cluster.refusal,
        "proof": cluster.proof,
    }


def _leaf(leaf: Leaf, leaves: list[Leaf]) -> dict[str, Any]:
    return {
        "name": leaf.name,
        "path": leaf.path,
        "shape": leaf.shape,
        "dtype": leaf.dtype,
        "axes": leaf.spec,
        "donated": leaf.donated,
        "twins": [twin.name for twin in twins(leaf, leaves)],
    }
