"""The settings of one node: its mode, its GPUs, its address, and the lists that name all hosts or processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from launcher.config import readers
from launcher.config.setting import BASE, COLLECTIVE, ELASTIC, SERVERS, Scope, Settings, flags_of, setting


@dataclass(frozen=True, kw_only=True)
class DeviceSettings(Settings, group=BASE):
    """The mode of this node, its GPUs, and how many workers it has."""

    run_mode: str = setting(
        "collective",
        "collective, ps (parameter servers) or ps-heter (and heterogeneous workers)",
        readers.choice("collective", "ps", "ps-heter"),
        "MODE",
        shown="collective; ps when a flag of the parameter-server group is given",
    )
    gpus: tuple[str, ...] = setting(
        (),
        'the cards to use, by their physical number or UUID, in this order: --gpus "1, 3"; one worker for each; '
        "as many on every node",
        readers.gpus,
        "ID,...",
        shown="all cards",
        scope=Scope.PARENT,
    )
    one_card_per_worker: bool = setting(
        False, "each worker sees its own card only, as cuda:0, for scripts that just say cuda"
    )
    slots: int = setting(
        0,
        "workers on each node: a number, auto (one for each card, else 1), gpu or cpu; the same on every node; "
        "not with parameter servers",
        readers.nproc,
        "N",
        shown="auto",
        name="nproc_per_node",
        scope=Scope.JOB,
    )
    local_nodes: int = setting(
        0,
        "run K nodes on this machine; without --elastic_server they bring their own etcd",
        readers.count(1, readers.LOCAL_NODES_MAX),
        "K",
        shown="1 without a server",
        scope=Scope.PARENT,
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings, group=BASE):
    """How the other nodes reach this one."""

    host: str = setting(
        "",
        "the name or address under which the other nodes reach this one",
        readers.host,
        "HOST",
        shown="the address of the route to the store",
        group=ELASTIC,
        environs=("POD_IP",),
        once=True,
    )
    nic: str = setting(
        "",
        "the network interface for this node's address and for NCCL and gloo",
        readers.nic,
        "NAME",
        shown="the one that has the address of --host",
    )
    port_range: tuple[int, int] | None = setting(
        None,
        "take the node's own ports from this range: LOW:HIGH; a node needs one for each worker and 4 more; "
        "gloo, NCCL and etcd have others",
        readers.port_range,
        "LOW:HIGH",
        shown="any free ports",
    )


@dataclass(frozen=True, kw_only=True)
class HostListSettings(Settings, group=COLLECTIVE):
    """A job whose hosts are all named."""

    ips: tuple[str, ...] = setting(
        (),
        "names or addresses of all nodes; M_id is the place in this list, the same list on every node; without "
        "--elastic_server the host that sorts first serves",
        readers.hosts,
        "HOST,...",
        shown="nodes find each other in etcd",
        scope=Scope.JOB,
    )
    ctrl_port: int = setting(
        0,
        "the port where the workers meet (MASTER_PORT) in every generation, the same on every node",
        readers.port,
        "PORT",
        shown="any free port",
        once=True,
    )
    serve_port: int = setting(
        12379,
        "with --ips or --servers and without --elastic_server: the port of the etcd that the first host serves",
        readers.port,
        "PORT",
    )


@dataclass(frozen=True, kw_only=True)
class PsSettings(Settings, group=SERVERS):
    """The processes of a parameter-server job."""

    ps_servers: tuple[str, ...] = setting(
        (),
        "the parameter servers, HOST:PORT with commas; each node starts those that are its own",
        readers.endpoint_list,
        "HOST:PORT,...",
        shown="none",
        name="servers",
    )
    ps_workers: tuple[str, ...] = setting(
        (),
        "the workers, HOST:PORT or HOST with commas; each node starts those that are its own",
        readers.worker_list,
        "HOST[:PORT],...",
        shown="none",
        name="workers",
    )
    ps_heter_workers: tuple[str, ...] = setting(
        (),
        "the heterogeneous workers of ps-heter, HOST:PORT or HOST with commas",
        readers.worker_list,
        "HOST[:PORT],...",
        shown="none",
        name="heter_workers",
    )
    server_num: int = setting(
        0,
        "parameter servers; without --np and lists all of them here, with --np one on each of the first nodes",
        readers.count(1, readers.SLOTS_MAX),
        "N",
        shown="the length of --servers",
    )
    worker_num: int = setting(
        0,
        "workers; without --np and lists all of them here, with --np as many on every node that has no server",
        readers.count(1, readers.SLOTS_MAX),
        "N",
        shown="the length of --workers",
    )
    heter_worker_num: int = setting(
        0,
        "heterogeneous workers, counted as --worker_num",
        readers.count(1, readers.SLOTS_MAX),
        "N",
        shown="the length of --heter_workers",
    )
    http_port: int = setting(
        0,
        "the port on server 0's host where workers can meet (PADDLE_GLOO_HTTP_ENDPOINT, MASTER_PORT)",
        readers.port,
        "PORT",
        shown="any free port",
    )


PS_FLAGS: Final = tuple(flag.name for flag in flags_of(PsSettings))
