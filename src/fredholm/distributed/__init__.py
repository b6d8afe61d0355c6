"""One model over many processes, and one signal over many devices."""

from fredholm.distributed.collectives import Traffic, counted_traffic
from fredholm.distributed.shard import Shard, gather_points, reduce_gradients, shard_points

__all__ = ["Shard", "Traffic", "counted_traffic", "gather_points", "reduce_gradients", "shard_points"]
