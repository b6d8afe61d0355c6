"""One model over many processes, and one signal over many devices."""

from fredholm.distributed.collectives import Traffic, counted_traffic
from fredholm.distributed.processes import LostProcessError, OtherProcessError, Processes, joined, leave
from fredholm.distributed.shard import Shard, gather_points, reduce_gradients, shard_points

__all__ = [
    "LostProcessError",
    "OtherProcessError",
    "Processes",
    "Shard",
    "Traffic",
    "counted_traffic",
    "gather_points",
    "joined",
    "leave",
    "reduce_gradients",
    "shard_points",
]
