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
        "collective, ps (parameter servers) or ps-heter (parameter servers and heterogeneous workers)",
        readers.choice("collective", "ps", "ps-heter"),
        "MODE",
        shown="collective; ps when a flag of the parameter-server group is given",
    )
    gpus: tuple[str, ...] = setting(
        (),
        'the GPUs to use, by number or UUID as nvidia-smi -L shows them, in this order: --gpus "1, 3"; one worker for '
        "each; every node names the same number of GPUs",
        readers.gpus,
        "ID,...",
        shown="all GPUs",
        scope=Scope.PARENT,
    )
    isolate_gpus: bool = setting(
        False,
        "each worker sees only its own GPU, as cuda:0; for scripts that use cuda without an index",
        old_name="one_card_per_worker",
    )
    slots: int = setting(
        0,
        "workers on each node: a number, auto (one for each GPU, or 1 without GPUs), gpu (one for each GPU) or cpu "
        "(one for each core); the same on every node; not with parameter servers",
        readers.nproc,
        "N",
        shown="auto",
        name="nproc_per_node",
        scope=Scope.JOB,
    )
    no_python: bool = setting(False, "run the script as a program, without python, even if its name ends in .py")
    local_nodes: int = setting(
        0,
        "run K nodes on this machine, with their own etcd unless --elastic-server names one",
        readers.count(1, readers.LOCAL_NODES_MAX),
        "K",
        shown="1",
        scope=Scope.PARENT,
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings, group=BASE):
    """How the other nodes reach this one."""

    host: str = setting(
        "",
        "the name or address at which other nodes reach this one",
        readers.host,
        "HOST",
        shown="the local address of the route to etcd",
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
        "take the node's ports from this range: LOW:HIGH; a node needs one for each worker and 4 more; gloo, NCCL and "
        "etcd use other ports",
        readers.port_range,
        "LOW:HIGH",
        shown="any free ports",
    )


@dataclass(frozen=True, kw_only=True)
class HostListSettings(Settings, group=COLLECTIVE):
    """A job whose hosts are all listed."""

    ips: tuple[str, ...] = setting(
        (),
        "names or addresses of all nodes, the same list on every node; the node rank is the place in this list; "
        "without --elastic-server the host whose name sorts first starts etcd",
        readers.hosts,
        "HOST,...",
        shown="nodes find each other in etcd",
        scope=Scope.JOB,
    )
    ctrl_port: int = setting(
        0,
        "the port where the workers rendezvous (MASTER_PORT) in every generation, the same on every node",
        readers.port,
        "PORT",
        shown="any free port",
        once=True,
    )
    serve_port: int = setting(
        12379,
        "with --ips or --servers and without --elastic-server: the port of the etcd that the first host starts",
        readers.port,
        "PORT",
    )


@dataclass(frozen=True, kw_only=True)
class PsSettings(Settings, group=SERVERS):
    """The processes of a parameter-server job."""

    ps_servers: tuple[str, ...] = setting(
        (),
        "the parameter servers, comma-separated HOST:PORT; each node starts those with its own host",
        readers.endpoint_list,
        "HOST:PORT,...",
        shown="none",
        name="servers",
        variable="ELASTIC_PS_SERVERS",
        old_variables=("ELASTIC_SERVERS",),
    )
    ps_workers: tuple[str, ...] = setting(
        (),
        "the workers, comma-separated HOST:PORT or HOST; each node starts those with its own host",
        readers.worker_list,
        "HOST[:PORT],...",
        shown="none",
        name="workers",
        variable="ELASTIC_PS_WORKERS",
        old_variables=("ELASTIC_WORKERS",),
    )
    ps_heter_workers: tuple[str, ...] = setting(
        (),
        "the heterogeneous workers of ps-heter, comma-separated HOST:PORT or HOST",
        readers.worker_list,
        "HOST[:PORT],...",
        shown="none",
        name="heter_workers",
        variable="ELASTIC_PS_HETER_WORKERS",
        old_variables=("ELASTIC_HETER_WORKERS",),
    )
    server_num: int = setting(
        0,
        "the number of parameter servers; without --np and lists all run on this node, with --np one on each of the "
        "first nodes",
        readers.count(1, readers.SLOTS_MAX),
        "N",
        shown="the length of --servers",
    )
    worker_num: int = setting(
        0,
        "the number of workers; without --np and lists all run on this node, with --np it is the number on every node "
        "that has no server",
        readers.count(1, readers.SLOTS_MAX),
        "N",
        shown="the length of --workers",
    )
    heter_worker_num: int = setting(
        0,
        "the number of heterogeneous workers, counted as --worker-num is",
        readers.count(1, readers.SLOTS_MAX),
        "N",
        shown="the length of --heter-workers",
    )
    http_port: int = setting(
        0,
        "the port on server 0's host where workers can rendezvous (PADDLE_GLOO_HTTP_ENDPOINT, MASTER_PORT)",
        readers.port,
        "PORT",
        shown="any free port",
    )


PS_FLAGS: Final = tuple(flag.name for flag in flags_of(PsSettings))
