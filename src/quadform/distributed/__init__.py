"""Several processes, one measurement: the data of a risk, or the vectors of a product, split over torch.distributed.

from quadform import distributed as qd

with qd.group() as g:  # the processes of torchrun; nothing at all in a single process
    risk = qd.shard(risk, g)
    H = qf.hessian(risk)
"""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ALONE": ".processes",
        "Group": ".processes",
        "PeerFailed": ".processes",
        "current": ".processes",
        "group": ".processes",
        "group_of": ".processes",
        "join": ".sharding",
        "processes_with": ".shards",
        "shard": ".sharding",
        "shared": ".sharding",
        "spread": ".spreading",
    },
)
