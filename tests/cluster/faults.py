"""What goes wrong in real clusters, by name. Each fault strikes a stage and gives back what heals it.

A fault that strikes a machine or a member of etcd draws which one. How long it lasts is the caller's.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from tests.cluster.machines import Machine
from tests.cluster.members import Member
from tests.cluster.stage import JOB, Stage

Heal = Callable[[], Awaitable[None]]
Strike = Callable[[Stage, Random], Awaitable[Heal]]
Takes = Literal["machine", "etcd", "all"]

LOSS: Final = 0.1
"""Of all packets of a bad network, in each direction."""
NAME_SERVER: Final = "127.0.0.11"
"""The engine's own, in each machine."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault with its name, as docs and seeds have it, and what no other fault of the same moment may strike."""

    name: str
    text: str
    takes: Takes
    strike: Strike


FAULTS: Final[dict[str, Fault]] = {}


def _fault(takes: Takes) -> Callable[[Strike], Strike]:
    def add(strike: Strike) -> Strike:
        name = strike.__name__
        FAULTS[name] = Fault(name, (strike.__doc__ or "").strip(), takes, strike)
        return strike

    return add


async def nothing() -> None:
    """Heal what heals by itself."""


# One machine.


@_fault("machine")
async def agent_killed(stage: Stage, dice: Random) -> Heal:
    """SIGKILL to an agent; its machine stays."""
    machine = stage.draw(dice)
    machine.signal(machine.agents(), signal.SIGKILL)
    return _ended(stage, machine)


@_fault("machine")
async def agent_told_to_leave(stage: Stage, dice: Random) -> Heal:
    """SIGTERM to an agent."""
    machine = stage.draw(dice)
    machine.signal(machine.agents(), signal.SIGTERM)
    return _ended(stage, machine)


@_fault("machine")
async def agent_frozen(stage: Stage, dice: Random) -> Heal:
    """SIGSTOP to an agent; its nursery and its worker go on."""
    machine = stage.draw(dice)
    frozen = machine.agents()
    machine.signal(frozen, signal.SIGSTOP)

    async def heal() -> None:
        machine.signal(frozen, signal.SIGCONT)

    return heal


@_fault("machine")
async def nursery_killed(stage: Stage, dice: Random) -> Heal:
    """SIGKILL to a nursery."""
    machine = stage.draw(dice)
    machine.signal(machine.nurseries(), signal.SIGKILL)
    return nothing


@_fault("machine")
async def worker_killed(stage: Stage, dice: Random) -> Heal:
    """SIGKILL to a worker."""
    machine = stage.draw(dice)
    machine.signal(machine.workers(), signal.SIGKILL)
    return nothing


@_fault("machine")
async def out_of_memory(stage: Stage, dice: Random) -> Heal:
    """A worker takes more memory than its machine has; the kernel kills it."""
    hungry = stage.folder / f"eat-{stage.draw(dice).name}"
    hungry.touch()

    async def heal() -> None:
        hungry.unlink(missing_ok=True)

    return heal


@_fault("machine")
async def machine_killed(stage: Stage, dice: Random) -> Heal:
    """Power off, and on again."""
    machine = stage.draw(dice)
    machine.kill()

    async def heal() -> None:
        await stage.left(machine)
        machine.start()

    return heal


@_fault("machine")
async def machine_frozen(stage: Stage, dice: Random) -> Heal:
    """A whole machine stands still, as under a hypervisor that moves it."""
    machine = stage.draw(dice)
    machine.pause()

    async def heal() -> None:
        machine.unpause()

    return heal


@_fault("machine")
async def cable_pulled(stage: Stage, dice: Random) -> Heal:
    """A machine has no network card any more, and knows it."""
    machine = stage.draw(dice)
    machine.unplug()

    async def heal() -> None:
        machine.plug()

    return heal


@_fault("machine")
async def cut_off(stage: Stage, dice: Random) -> Heal:
    """No packet comes or goes; nothing is refused."""
    return _wall(stage.draw(dice), "INPUT ! -i lo -j DROP", "OUTPUT ! -o lo -j DROP")


@_fault("machine")
async def deaf(stage: Stage, dice: Random) -> Heal:
    """A machine can send, and nothing reaches it."""
    return _wall(stage.draw(dice), "INPUT ! -i lo -j DROP")


@_fault("machine")
async def mute(stage: Stage, dice: Random) -> Heal:
    """All reaches a machine, and nothing leaves it."""
    return _wall(stage.draw(dice), "OUTPUT ! -o lo -j DROP")


@_fault("machine")
async def refused_by_etcd(stage: Stage, dice: Random) -> Heal:
    """A firewall resets what a machine sends to etcd."""
    return _wall(
        stage.draw(dice),
        *(f"OUTPUT -p tcp -d {one.address} -j REJECT --reject-with tcp-reset" for one in stage.members.all),
    )


@_fault("machine")
async def cut_from_etcd(stage: Stage, dice: Random) -> Heal:
    """A machine reaches the other machines, and not etcd."""
    return _wall(stage.draw(dice), *(f"OUTPUT -d {one.address} -j DROP" for one in stage.members.all))


@_fault("machine")
async def cut_from_machines(stage: Stage, dice: Random) -> Heal:
    """A machine reaches etcd, and not the other machines."""
    machine = stage.draw(dice)
    return _wall(machine, *(f"{way} -j DROP" for other in stage.others(machine) for way in _ways(other)))


@_fault("machine")
async def cut_from_one(stage: Stage, dice: Random) -> Heal:
    """Two machines do not reach each other; all else is as before."""
    machine = stage.draw(dice)
    return _wall(machine, *(f"{way} -j DROP" for way in _ways(dice.choice(stage.others(machine)))))


@_fault("machine")
async def rejecting(stage: Stage, dice: Random) -> Heal:
    """A firewall resets what the other machines send to one."""
    machine = stage.draw(dice)
    return _wall(
        machine,
        *(f"INPUT -p tcp -s {one.address} -j REJECT --reject-with tcp-reset" for one in stage.others(machine)),
    )


@_fault("machine")
async def lossy(stage: Stage, dice: Random) -> Heal:
    """A machine's network loses every tenth packet, in both directions."""
    some = f"! -{{}} lo -m statistic --mode random --probability {LOSS} -j DROP"
    return _wall(stage.draw(dice), f"INPUT {some.format('i')}", f"OUTPUT {some.format('o')}")


@_fault("machine")
async def slow(stage: Stage, dice: Random) -> Heal:
    """A machine sends one megabit in a second, behind a full buffer."""
    machine = stage.draw(dice)
    machine.slow()

    async def heal() -> None:
        machine.fast()

    return heal


@_fault("machine")
async def no_names(stage: Stage, dice: Random) -> Heal:
    """The name server does not answer a machine any more."""
    return _wall(stage.draw(dice), f"OUTPUT -d {NAME_SERVER} -j DROP")


# What all machines share.


@_fault("all")
async def disk_full(stage: Stage, dice: Random) -> Heal:
    """The storage of the checkpoints has no room left."""
    filler = stage.disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            pass

    async def heal() -> None:
        filler.unlink()

    return heal


# etcd.


@_fault("etcd")
async def etcd_follower_killed(stage: Stage, dice: Random) -> Heal:
    """A member that does not lead is killed."""
    return _killed(stage, [dice.choice(stage.members.followers())])


@_fault("etcd")
async def etcd_leader_killed(stage: Stage, dice: Random) -> Heal:
    """The member that leads is killed."""
    return _killed(stage, [stage.members.leader()])


@_fault("etcd")
async def etcd_leader_frozen(stage: Stage, dice: Random) -> Heal:
    """The member that leads stands still; its connections stay."""
    return _frozen(stage, [stage.members.leader()])


@_fault("etcd")
async def etcd_quorum_lost(stage: Stage, dice: Random) -> Heal:
    """Two of three members are killed."""
    return _killed(stage, dice.sample(stage.members.all, 2))


@_fault("etcd")
async def etcd_away(stage: Stage, dice: Random) -> Heal:
    """All members are killed; they come back with their data."""
    return _killed(stage, stage.members.all)


@_fault("etcd")
async def etcd_frozen(stage: Stage, dice: Random) -> Heal:
    """All members stand still."""
    return _frozen(stage, stage.members.all)


@_fault("etcd")
async def etcd_emptied(stage: Stage, dice: Random) -> Heal:
    """All members are killed and come back without their data."""
    for member in stage.members.all:
        member.kill()
    for member in stage.members.all:
        member.renew()
    stage.members.until_led()
    return nothing


@_fault("etcd")
async def compacted_under_a_watch(stage: Stage, dice: Random) -> Heal:
    """While a machine does not reach etcd, something is written, and all that was before is forgotten."""
    heal = _wall(stage.draw(dice), *(f"OUTPUT -d {one.address} -j DROP" for one in stage.members.all))

    async def compact_and_heal() -> None:
        stage.members.write("/beside")
        stage.members.compact()
        await heal()

    return compact_and_heal


@_fault("etcd")
async def lease_revoked(stage: Stage, dice: Random) -> Heal:
    """Somebody ends the lease of a node that is well."""
    leases = sorted(lease for key, lease in stage.members.keys(f"/elastic/{JOB}/members/").items() if lease)
    if leases:
        stage.members.revoke(dice.choice(leases))
    return nothing


def _ended(stage: Stage, machine: Machine) -> Heal:
    async def heal() -> None:
        await stage.left(machine)

    return heal


def _wall(machine: Machine, *rules: str) -> Heal:
    machine.firewall(*rules)

    async def heal() -> None:
        machine.open()

    return heal


def _ways(other: Machine) -> tuple[str, str]:
    return f"INPUT -s {other.address}", f"OUTPUT -d {other.address}"


def _killed(stage: Stage, members: list[Member]) -> Heal:
    for member in members:
        member.kill()

    async def heal() -> None:
        for member in members:
            member.start()
        stage.members.until_led()

    return heal


def _frozen(stage: Stage, members: list[Member]) -> Heal:
    for member in members:
        member.pause()

    async def heal() -> None:
        for member in members:
            member.unpause()
        stage.members.until_led()

    return heal
