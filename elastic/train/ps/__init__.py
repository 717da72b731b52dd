"""Parameter servers for PyTorch: servers store parameters and embeddings, workers pull them and push gradients.

One script, by role::

    import elastic
    from elastic.train import ps

    if elastic.env().role == "server":
        ps.Server().run()                       # returns when all workers have closed or failed
    else:
        model = Net()
        worker = ps.Worker(model, lr=0.01)
        for batch in batches:
            loss_of(model, batch).backward()
            worker.step()
        worker.close()

It runs under elastic-launch, or by hand with Paddle's `PADDLE_…` variables. Data from the network is never unpickled.
Servers and workers prove to each other that they know ELASTIC_PS_SECRET, which elastic-launch sets. Messages are
neither encrypted nor signed, so only the hosts of the job should be able to connect to the ports.
"""

from __future__ import annotations

from elastic.train.ps.embedding import Embedding
from elastic.train.ps.server import Server
from elastic.train.ps.worker import Worker

__all__ = ["Embedding", "Server", "Worker"]
