"""How a node comes into a job: what it registers, what it must accept, when it is refused, what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from elastic.core.admission import SPEC_FLAGS, AdmissionPlan, Applicant, join
from elastic.core.kv import Put
from elastic.core.model import SCHEMA, FinalStatus, JobMode, JobSpec, Verdict
from elastic.core.ps.model import PsJobSpec, PsLayout
from elastic.core.view import encode
from launcher.config.readers import np as read_np
from tests.support.admission import STORED, a_job, me, plan
from tests.support.job_transcript import member
from tests.support.store_fixture import Shelf
from tests.support.strategies import KEYS

VERDICT = Verdict(status=FinalStatus.COMPLETED, reason="every worker ended", run=1, g=4, at=1.0)


def joined(shelf: Shelf, decided: AdmissionPlan) -> JobSpec:
    """The plan is carried out; the spec that stands there then."""
    assert decided.refusal == ""
    assert decided.transaction is not None
    assert shelf.send(decided.transaction)
    assert "d" in shelf.view.members
    assert shelf.view.spec is not None
    return shelf.view.spec.value


def kept(shelf: Shelf, decided: AdmissionPlan) -> bool:
    """The plan is carried out, and does not touch the spec."""
    before = shelf.entry(KEYS.spec)
    joined(shelf, decided)
    return shelf.entry(KEYS.spec) == before


# --- a store without the job --------------------------------------------------------------------------------------


@pytest.mark.parametrize("somebody_lives", [None, False])
def test_in_a_fresh_store_the_node_writes_its_spec_and_a_new_incarnation(somebody_lives: bool | None) -> None:
    shelf = Shelf(KEYS)
    decided = plan(shelf, me(), somebody_lives)
    assert decided.lines == ()
    assert joined(shelf, decided) == STORED
    assert shelf.view.incarnation is not None
    assert shelf.view.incarnation.value == "i9-1"


def test_a_store_that_lost_only_the_spec_keeps_its_incarnation() -> None:
    shelf = a_job()
    shelf.delete(KEYS.spec)
    assert joined(shelf, plan(shelf, me(), None)) == STORED
    assert shelf.view.incarnation is not None
    assert shelf.view.incarnation.value == "i1"


# --- the same settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("somebody_lives", [None, False, True])
def test_with_the_jobs_own_settings_a_node_joins_without_a_word_whoever_lives(somebody_lives: bool | None) -> None:
    shelf = a_job("a")
    decided = plan(shelf, me(), somebody_lives)
    assert decided.lines == ()
    assert kept(shelf, decided)


def test_the_run_number_is_the_jobs_and_no_setting_of_a_node() -> None:
    shelf = a_job("a", spec=msgspec.structs.replace(STORED, run=7))
    decided = plan(shelf, me(), True)
    assert decided.lines == ()
    assert kept(shelf, decided)


# --- other settings, nobody alive ---------------------------------------------------------------------------------


def test_with_other_settings_it_must_be_known_first_whether_anybody_lives() -> None:
    shelf = a_job()
    assert plan(shelf, me(np=read_np("2")), None) == AdmissionPlan()


def test_when_nobody_lives_the_node_writes_its_own_settings_and_says_what_changed() -> None:
    shelf = a_job()
    decided = plan(shelf, me(np=read_np("2:8"), slots=8, join_window_s=1.5, fatal_exit_codes=(7, 9)), False)
    assert decided.lines == (
        "no node is registered, so the job takes this node's settings: --np 1:4 becomes 2:8, "
        "--nproc-per-node 2 becomes 8, --join-window 3 becomes 1.5, --fatal-exit-codes none becomes 7,9",
    )
    spec = joined(shelf, decided)
    assert (str(spec.np), spec.slots, spec.join_window_s, spec.fatal_exit_codes) == ("2:8", 8, 1.5, (7, 9))


def test_the_run_number_stays_when_the_settings_are_written_anew() -> None:
    shelf = a_job(spec=msgspec.structs.replace(STORED, run=7))
    assert joined(shelf, plan(shelf, me(slots=8), False)).run == 7


def test_the_settings_are_not_written_anew_when_somebody_registered_in_the_meantime() -> None:
    shelf = a_job()
    decided = plan(shelf, me(slots=8), False)
    shelf.put(KEYS.member("a"), member(), leased=True)
    assert decided.transaction is not None
    assert not shelf.send(decided.transaction)


OTHERS: dict[str, Any] = {
    "np": read_np("9"),
    "slots": 3,
    "join_window_s": 9.0,
    "scale_up_interval_s": 9.0,
    "restarts_max": 9,
    "host_cooldown_s": 9.0,
    "lease_ttl_s": 9.0,
    "silence_timeout_s": 9.0,
    "etcd_outage_timeout_s": 9.0,
    "fatal_exit_codes": (9,),
    "mode": JobMode.PS,
    "ips": ("h", "i"),
    "layout_text": "--servers h:1",
}


@pytest.mark.parametrize("name", SPEC_FLAGS)
def test_every_setting_of_the_job_that_a_node_brings_is_compared_written_and_named(name: str) -> None:
    shelf = a_job()
    given = {"layout": PsLayout(servers=("h:1",))} if name == "layout_text" else {name: OTHERS[name]}
    decided = plan(shelf, me(**given), False)
    assert f"{SPEC_FLAGS[name]} " in decided.lines[0]
    assert getattr(joined(shelf, decided), name) == OTHERS[name]


def test_every_setting_has_its_flag() -> None:
    fields = set(SPEC_FLAGS) - {"layout_text"} | {"run", "schema", "versions"}
    assert fields == set(JobSpec.__struct_fields__)
    assert fields | {"layout"} == set(PsJobSpec.__struct_fields__)


# --- other settings, somebody alive -------------------------------------------------------------------------------


def test_with_another_np_the_node_is_told_so_in_one_line_and_follows_the_job() -> None:
    shelf = a_job("a")
    decided = plan(shelf, me(np=read_np("2")), True)
    assert decided.lines == ("this node uses the job's settings: --np is 1:4 there, 2 here",)
    assert kept(shelf, decided)


def test_with_several_other_settings_the_one_line_names_them_all() -> None:
    shelf = a_job("a")
    decided = plan(shelf, me(np=read_np("2"), restarts_max=0, lease_ttl_s=2.5), True)
    assert decided.lines == (
        "this node uses the job's settings: --np is 1:4 there, 2 here, --max-restarts is 3 there, 0 here, "
        "--lease-ttl is 5 there, 2.5 here",
    )


def test_a_setting_that_the_job_has_left_to_its_default_is_called_so() -> None:
    decided = plan(a_job("a"), me(scale_up_interval_s=9.0), True)
    assert decided.lines == ("this node uses the job's settings: --scale-up-interval is the default there, 9 here",)


def test_force_changes_np_and_nothing_else_of_a_living_job() -> None:
    shelf = a_job("a")
    decided = plan(shelf, me(force=True, np=read_np("2:8"), restarts_max=0), True, fresh=True)
    assert decided.lines == (
        "--force: the job's --np 1:4 becomes 2:8",
        "this node uses the job's settings: --max-restarts is 3 there, 0 here",
    )
    assert joined(shelf, decided) == msgspec.structs.replace(STORED, np=read_np("2:8"))


def test_force_with_the_same_np_changes_nothing() -> None:
    shelf = a_job("a")
    assert kept(shelf, plan(shelf, me(force=True, restarts_max=0), True, fresh=True))


def test_a_node_that_registers_again_does_not_undo_with_force_what_an_operator_has_scaled() -> None:
    shelf = a_job("a")
    assert kept(shelf, plan(shelf, me(force=True, np=read_np("2")), True))


def test_force_fails_when_the_spec_changed_in_the_meantime() -> None:
    shelf = a_job("a")
    decided = plan(shelf, me(force=True, np=read_np("2")), True, fresh=True)
    shelf.put(KEYS.spec, msgspec.structs.replace(STORED, np=read_np("3")))
    assert decided.transaction is not None
    assert not shelf.send(decided.transaction)


@pytest.mark.parametrize("force", [False, True])
def test_a_node_with_another_number_of_cards_is_refused_with_both_numbers(force: bool) -> None:
    decided = plan(a_job("a"), me(force=force, slots=8, np=read_np("2")), True)
    assert decided.transaction is None
    assert decided.refusal == (
        "node d runs 8 workers, job j1 runs 2 on every node; use --nproc-per-node 2, or as many GPUs with --gpus"
    )


def test_a_node_of_another_mode_is_told_so_and_not_that_its_cards_are_too_few() -> None:
    decided = plan(a_job("a"), me(slots=1, mode=JobMode.PS), True)
    assert decided.refusal == "job j1 runs with --run-mode collective, this node has ps; use the same everywhere"


def test_a_node_of_elastic_launch_is_told_that_the_job_is_torchruns_and_the_other_way_round() -> None:
    words = "use one of them on every node, or another job ID"
    torchruns = a_job("a", spec=msgspec.structs.replace(STORED, mode=JobMode.TORCHRUN))
    ours, theirs = plan(a_job("a"), me(mode=JobMode.TORCHRUN), True), plan(torchruns, me(), True)
    assert ours.refusal == f"job j1 runs under elastic-launch, and this node under torchrun; {words}"
    assert theirs.refusal == f"job j1 runs under torchrun, and this node under elastic-launch; {words}"


def test_one_card_is_one_card() -> None:
    assert "node d runs 1 worker, job j1 runs 2" in plan(a_job("a"), me(slots=1), True).refusal


# --- versions -----------------------------------------------------------------------------------------------------

VERSIONS = {
    "python": "3.11.7",
    "torch": "2.13.0+cu128",
    "nccl": "2.27.5",
    "launcher": "0.1.0",
    "script": "aaaaaaaaaaaa",
}


def a_job_with_versions(*members: str) -> Shelf:
    return a_job(*members, spec=msgspec.structs.replace(STORED, versions=VERSIONS))


@pytest.mark.parametrize(
    ("name", "here"), [("python", "3.12.7"), ("torch", "2.6.0"), ("nccl", "2.18.1"), ("launcher", "1.1.0")]
)
def test_a_node_with_another_major_or_minor_version_is_refused_with_both_values(name: str, here: str) -> None:
    decided = plan(a_job_with_versions("a"), me(versions={**VERSIONS, name: here}), True)
    assert decided.transaction is None
    assert decided.refusal.startswith(f"{name} is {VERSIONS[name]} in job j1, {here} on this node; install the same ")
    assert decided.refusal.endswith("on every node, or join anyway with --allow-mismatch")


def test_every_version_that_keeps_a_node_out_is_named_at_once() -> None:
    decided = plan(a_job_with_versions("a"), me(versions={**VERSIONS, "torch": "1.0", "python": "3.9.1"}), True)
    assert "python is 3.11.7 in job j1, 3.9.1 on this node, torch is 2.13.0+cu128 in job j1, 1.0" in decided.refusal


def test_allow_mismatch_lets_a_node_in_with_one_warning_line() -> None:
    shelf = a_job_with_versions("a")
    decided = plan(shelf, me(versions={**VERSIONS, "torch": "2.6.0"}, allow_mismatch=True), True)
    assert decided.lines == ()
    assert decided.warnings == (
        "this node joins although torch is 2.13.0+cu128 in the job, 2.6.0 on this node (--allow-mismatch); "
        "install the same torch on every node",
    )
    assert kept(shelf, decided)


@pytest.mark.parametrize(
    ("name", "here", "said"),
    [
        ("torch", "2.13.1+cu128", "torch is 2.13.0+cu128 in the job, 2.13.1+cu128 on this node"),
        ("torch", "2.13.0+cpu", "torch is 2.13.0+cu128 in the job, 2.13.0+cpu on this node"),
        ("nccl", "", "nccl is 2.27.5 in the job, missing on this node"),
        ("script", "bbbbbbbbbbbb", "the script's digest is aaaaaaaaaaaa in the job, bbbbbbbbbbbb on this node"),
    ],
)
def test_another_patch_level_or_script_is_one_warning_line_with_both_values(name: str, here: str, said: str) -> None:
    shelf = a_job_with_versions("a")
    mine = {key: text for key, text in {**VERSIONS, name: here}.items() if text}
    decided = plan(shelf, me(versions=mine), True)
    assert [line.partition(";")[0] for line in decided.warnings] == [f"this node joins although {said}"]
    assert decided.lines == ()
    assert kept(shelf, decided)


def test_other_versions_are_no_setting_that_a_node_follows() -> None:
    decided = plan(a_job_with_versions("a"), me(np=read_np("2"), versions={**VERSIONS, "script": "b"}), True)
    assert decided.lines == ("this node uses the job's settings: --np is 1:4 there, 2 here",)
    assert len(decided.warnings) == 1


@pytest.mark.parametrize("there", [{}, {**VERSIONS, "torch": "1.0"}])
def test_when_nobody_lives_the_jobs_versions_become_this_nodes_without_a_word(there: dict[str, str]) -> None:
    shelf = a_job(spec=msgspec.structs.replace(STORED, versions=there))
    assert plan(shelf, me(versions=VERSIONS), None) == AdmissionPlan()
    decided = plan(shelf, me(versions=VERSIONS), False)
    assert (decided.lines, decided.warnings) == ((), ())
    assert joined(shelf, decided).versions == VERSIONS


def test_force_keeps_the_jobs_versions() -> None:
    shelf = a_job_with_versions("a")
    decided = plan(shelf, me(force=True, np=read_np("2"), versions={**VERSIONS, "script": "b"}), True, fresh=True)
    assert decided.lines == ("--force: the job's --np 1:4 becomes 2",)
    assert len(decided.warnings) == 1
    assert joined(shelf, decided).versions == VERSIONS


def test_another_run_has_the_versions_of_the_node_that_begins_it() -> None:
    shelf = ended()
    decided = plan(shelf, me(rerun=True, versions=VERSIONS), False, again=True)
    assert decided.lines == ("--rerun: run 2 of the job begins",)
    assert joined(shelf, decided).versions == VERSIONS


# --- what cannot be joined ----------------------------------------------------------------------------------------


OTHER_SPECS = [encode(msgspec.structs.replace(STORED, schema=99)), b'{"schema":99}', b'{"schema":99,"np":"1:4"}']
"""Specs of another schema, with the fields of this one, without them, and with other types."""


@pytest.mark.parametrize("spec", OTHER_SPECS)
@pytest.mark.parametrize("somebody_lives", [None, False, True])
def test_a_node_is_rejected_by_a_job_of_another_schema_whoever_lives(somebody_lives: bool | None, spec: bytes) -> None:
    shelf = a_job("a")
    shelf.core.txn((), (Put(KEYS.spec, spec),))
    decided = plan(shelf, me(), somebody_lives, fresh=True)
    assert decided == AdmissionPlan(
        refusal=f"job j1 has schema 99, and this agent has schema {SCHEMA}; install the job's version of "
        "elastic-launch here, or stop the job and delete it (elastic-ctl forget)"
    )


@pytest.mark.parametrize("spec", OTHER_SPECS)
def test_a_node_of_a_running_job_is_not_sent_away_by_a_spec_of_another_schema_and_waits(spec: bytes) -> None:
    shelf = a_job("a")
    shelf.core.txn((), (Put(KEYS.spec, spec),))
    decided = plan(shelf, me(), True)
    assert (decided.transaction, decided.refusal) == (None, "")
    assert decided.lines == (
        f"job j1 has schema 99, and this agent has schema {SCHEMA}; this node was in the job, and waits until "
        f"{KEYS.spec} is restored",
    )


def test_a_spec_that_cannot_be_read_is_named_and_not_written_over() -> None:
    shelf = a_job()
    shelf.put(KEYS.spec, "junk")
    decided = plan(shelf, me(), False, fresh=True)
    assert decided.transaction is None
    assert "/elastic/j1/spec" in decided.refusal


def test_an_incarnation_that_cannot_be_read_is_named_and_not_written_over() -> None:
    shelf = a_job()
    shelf.core.txn((), (Put(KEYS.incarnation, b"junk"),))
    decided = plan(shelf, me(), False, fresh=True)
    assert decided.transaction is None
    assert "/elastic/j1/incarnation" in decided.refusal


@pytest.mark.parametrize("key", [KEYS.spec, KEYS.incarnation])
def test_a_node_that_has_been_registered_waits_until_what_cannot_be_read_is_put_right(key: str) -> None:
    shelf = a_job()
    shelf.core.txn((), (Put(key, b"junk"),))
    decided = plan(shelf, me(), False)
    assert (decided.transaction, decided.refusal) == (None, "")
    assert decided.lines == (f"{key} in etcd cannot be read; waiting until it is restored",)


def test_another_damaged_document_does_not_keep_a_node_out() -> None:
    shelf = a_job()
    shelf.core.txn((), (Put(KEYS.member("x"), b"junk"), Put(KEYS.go, b"junk")))
    assert kept(shelf, plan(shelf, me(), False))


def test_a_job_that_has_ended_cannot_be_joined() -> None:
    shelf = a_job()
    shelf.put(KEYS.verdict, VERDICT)
    decided = plan(shelf, me(), False)
    assert decided.transaction is not None
    assert not shelf.send(decided.transaction)


# --- another run --------------------------------------------------------------------------------------------------


def ended() -> Shelf:
    """A job that has ended; nobody is there any more."""
    shelf = a_job()
    shelf.put(KEYS.verdict, VERDICT)
    return shelf


@pytest.mark.parametrize("somebody_lives", [None, True])
def test_another_run_does_not_begin_before_it_is_known_that_nobody_lives(somebody_lives: bool | None) -> None:
    assert plan(ended(), me(rerun=True), somebody_lives, again=True) == AdmissionPlan()


def test_when_nobody_lives_another_run_begins_with_this_nodes_settings() -> None:
    shelf = ended()
    decided = plan(shelf, me(rerun=True, slots=8), False, again=True)
    assert decided.lines == ("--rerun: run 2 of the job begins: --nproc-per-node 2 becomes 8",)
    spec = joined(shelf, decided)
    assert (spec.run, spec.slots) == (2, 8)
    assert shelf.view.verdict is None


def test_another_run_does_not_begin_when_somebody_registered_in_the_meantime() -> None:
    shelf = ended()
    decided = plan(shelf, me(rerun=True), False, again=True)
    shelf.put(KEYS.member("a"), member(), leased=True)
    assert decided.transaction is not None
    assert not shelf.send(decided.transaction)


def test_another_run_of_a_job_of_another_schema_is_refused() -> None:
    shelf = a_job(spec=msgspec.structs.replace(STORED, schema=SCHEMA + 1))
    shelf.put(KEYS.verdict, VERDICT)
    assert f"schema {SCHEMA + 1}" in plan(shelf, me(rerun=True), False, again=True, fresh=True).refusal


def test_a_new_node_waits_for_a_stranger_of_its_own_name_to_leave() -> None:
    shelf = a_job("d")
    decided = join(Applicant(KEYS, shelf.view, me(), "i9", 99, True, fresh=True))
    assert decided.transaction is None
    assert not decided.refusal
    assert "another node is registered as d" in decided.lines[0]


def test_a_node_that_sees_the_spec_before_the_incarnation_waits_for_it() -> None:
    view = replace(a_job("a").view, incarnation=None)
    decided = join(Applicant(KEYS, view, me(), "i9", 99, True))
    assert decided == AdmissionPlan()


# --- a list of hosts ----------------------------------------------------------------------------------------------


LISTED = msgspec.structs.replace(STORED, ips=("h", "i"))
"""`h` is the host of every node here."""


@pytest.mark.parametrize("ips", [("i", "h"), ("h", "i", "j"), ("h",)])
def test_another_list_or_order_of_hosts_is_refused_with_both(ips: tuple[str, ...]) -> None:
    refusal = plan(a_job("a", spec=LISTED), me(ips=ips), True).refusal
    assert refusal == (
        f"--ips of this node is {','.join(ips)}, that of job {KEYS.job_id} is h,i; "
        "use the same list in the same order on every node"
    )


def test_a_list_is_refused_by_a_job_that_has_none() -> None:
    assert plan(a_job("a"), me(ips=("h", "i")), True).refusal == (
        f"this node has --ips h,i, and job {KEYS.job_id} was started without --ips; leave it out here, or give another "
        "--job-id"
    )


def test_a_host_that_the_jobs_list_does_not_name_is_refused_with_the_list() -> None:
    spec = msgspec.structs.replace(STORED, ips=("i", "j"))
    refusal = plan(a_job("a", spec=spec), me(), True).refusal
    assert refusal == (
        f"this node is h, which is not in --ips of job {KEYS.job_id} (i,j); add it to --ips on every node, or choose "
        "this node's entry with --host"
    )


def test_a_node_without_a_list_whose_host_is_named_follows_the_job() -> None:
    shelf = a_job("a", spec=LISTED)
    decided = plan(shelf, me(), True)
    assert decided.lines == ("this node uses the job's settings: --ips is h,i there, none here",)
    assert kept(shelf, decided)
