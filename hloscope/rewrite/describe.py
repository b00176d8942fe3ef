"""What a planner has to know of a step before anything is changed: its arrays, its mesh, its rules, its dead rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hloscope.rewrite.early import early_work
from hloscope.rewrite.leaves import Leaf, argument_leaves, twins
from hloscope.rewrite.rows import RowCluster, find_row_clusters
from hloscope.rewrite.update_loops import updates_of
from hloscope.rewrite.updates import Update

if TYPE_CHECKING:
    from hloscope.capture.worker import Built


def describe(built: Built, options: dict[str, Any]) -> dict[str, Any]:
    """Arrays by name, sizes of mesh axes, rule sets that are offered, and what could be done with rows and loops."""
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
        "updates": [_update(u) for u in updates_of(built.step)],
        "waiting": [{"key": w.key, "proof": w.proof} for w in early_work(built.step)],
    }


def _cluster(cluster: RowCluster) -> dict[str, Any]:
    return {
        "key": cluster.key,
        "kernel": cluster.kernel,
        "refusal": cluster.refusal,
        "proof": cluster.proof,
    }


def _update(update: Update) -> dict[str, Any]:
    return {
        "parameter": update.parameter,
        "shape": update.leaves[0].shape,
        "refusal": update.refusal,
        "proof": update.proof,
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
