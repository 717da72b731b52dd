"""Which checkpoint all ranks go on from."""

from __future__ import annotations

import pytest

from elastic.errors import CheckpointDamaged, CheckpointError, RestoreUnrecoverable
from elastic.train.comm.rank_errors import RankError, decode_errors, encode_error, raise_first
from elastic.train.restore.choose_checkpoint import (
    DamagedCheckpoint,
    KnownCheckpoint,
    RestoreReport,
    check_newest,
    choices,
    known,
    other_parts,
    problem,
    skipped_text,
)

OLD, NEW = "step-0000000100.g2", "step-0000000150.g3"
OLD_BAD = DamagedCheckpoint(OLD, "its checksum is wrong")
NEW_BAD = DamagedCheckpoint(NEW, "meta.json is damaged")


def report(
    *seen: str,
    host: str = "a",
    known: KnownCheckpoint | None = None,
    error: str = "",
    damaged: tuple[DamagedCheckpoint, ...] = (),
    transient: bool = False,
) -> RestoreReport:
    return RestoreReport(
        host=host, folder="/ck", seen=seen, known=known, error=error, damaged=damaged, transient=transient
    )


def exchanged(*errors: CheckpointError | None) -> list[RankError | None]:
    """What the ranks hear of each other when these are their errors."""
    return decode_errors([encode_error(None if error is None else RankError.of(error)) for error in errors])


def test_the_newest_that_any_rank_sees_comes_first() -> None:
    assert choices([report(OLD), report(OLD, NEW), report()]) == [NEW, OLD]


def test_of_one_step_the_later_generation_comes_first() -> None:
    again = "step-0000000100.g10"
    assert choices([report(OLD, again)]) == [again, OLD]


def test_nothing_is_said_when_the_newest_committed_step_can_be_read() -> None:
    told = KnownCheckpoint(150, "b", "/ck")
    assert check_newest(150, [report(NEW, known=told)], allow_rollback=False) == ""
    assert check_newest(-1, [report()], allow_rollback=False) == ""


def test_an_older_step_than_the_committed_one_is_an_error_that_names_host_and_folder() -> None:
    told = KnownCheckpoint(150, "b", "/ck")
    with pytest.raises(
        CheckpointError, match=r"step 150 was committed on b in /ck, but the newest .* step 100 .*a:/ck"
    ):
        check_newest(100, [report(OLD, known=told), report(OLD)], allow_rollback=False)
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        check_newest(-1, [report(known=told)], allow_rollback=False)


def test_what_another_start_may_still_read_is_not_hopeless() -> None:
    reports = [report(known=KnownCheckpoint(150, "a", "/ck"))]
    with pytest.raises(RestoreUnrecoverable):
        check_newest(-1, reports, allow_rollback=False)
    with pytest.raises(CheckpointError) as raised:
        check_newest(-1, reports, allow_rollback=False, transient=True)
    assert not isinstance(raised.value, RestoreUnrecoverable)
    with pytest.raises(CheckpointDamaged):
        check_newest(-1, [report(damaged=(NEW_BAD,))], allow_rollback=False, transient=True)
    with pytest.raises(CheckpointError) as raised:  # One rank alone has hope.
        check_newest(-1, [*reports, report(transient=True)], allow_rollback=False)
    assert not isinstance(raised.value, RestoreUnrecoverable)


def test_the_host_that_has_the_committed_step_may_come_back() -> None:
    with pytest.raises(CheckpointError, match="restart b") as raised:
        check_newest(-1, [report(known=KnownCheckpoint(150, "b", "/ck"))], allow_rollback=False)
    assert not isinstance(raised.value, RestoreUnrecoverable)


def test_an_error_of_one_rank_is_the_same_error_on_all_of_them() -> None:
    raise_first(exchanged(None, None))
    with pytest.raises(RestoreUnrecoverable, match=r"^it is gone: ü$"):
        raise_first(exchanged(None, CheckpointError("it is gone: ü")))
    with pytest.raises(CheckpointError, match=r"^try again$") as raised:
        raise_first(exchanged(CheckpointError("try again", transient=True), CheckpointError("it is gone")))
    assert not isinstance(raised.value, RestoreUnrecoverable)
    assert raised.value.transient


def test_a_committed_step_that_is_damaged_is_named_with_what_is_wrong() -> None:
    told = KnownCheckpoint(150, "b", "/ck")
    with pytest.raises(
        CheckpointError, match=r"step 150 .*0150.g3: meta.json is damaged; repair it, or .*rollback"
    ) as raised:
        check_newest(-1, [report(known=told)], allow_rollback=False, damaged=[OLD_BAD, NEW_BAD])
    assert OLD_BAD.name not in str(raised.value), "repairing this one would not help"


def test_who_misses_the_committed_step_is_not_told_to_mend_an_older_one() -> None:
    with pytest.raises(CheckpointError, match=r"; restart b or mount its directory here, or") as raised:
        check_newest(-1, [report(known=KnownCheckpoint(150, "b", "/ck"), damaged=(OLD_BAD,))], allow_rollback=False)
    assert OLD_BAD.name not in str(raised.value)


def test_training_does_not_start_over_where_all_checkpoints_are_damaged_unless_that_is_allowed() -> None:
    """Some by their meta.json, which each rank sees by itself, others by what was found when they were read."""
    seen = report(damaged=(NEW_BAD,))
    both = rf"no checkpoint in /ck can be read \({NEW_BAD}; {OLD_BAD}\)"
    with pytest.raises(RestoreUnrecoverable, match=f"{both}; restore one, or start from scratch with --allow-rollback"):
        check_newest(-1, [seen, seen], allow_rollback=False, damaged=[OLD_BAD])
    with pytest.raises(CheckpointDamaged, match=both):
        check_newest(-1, [seen], allow_rollback=False, damaged=[OLD_BAD], transient=True)
    assert check_newest(-1, [seen], allow_rollback=True) == (
        f"no checkpoint in /ck can be read ({NEW_BAD}) (--allow-rollback)"
    )
    assert check_newest(100, [seen], allow_rollback=False) == ""


def test_newer_checkpoints_that_were_skipped_are_named_with_the_reason() -> None:
    older = DamagedCheckpoint("step-0000000050.g1", "of no account")
    between = DamagedCheckpoint("step-0000000120.g2", "opt was saved unsharded, but is sharded now")
    seen = report(OLD, damaged=(NEW_BAD, older))
    assert skipped_text(OLD, [seen, seen], [between]) == f"; skipped {NEW_BAD}; {between}"
    assert skipped_text(NEW, [report(NEW)], []) == ""


def test_a_checkpoint_that_another_rank_could_read_was_not_skipped() -> None:
    assert skipped_text(NEW, [report(damaged=(NEW_BAD,)), report(NEW)], []) == ""


def test_of_one_step_the_later_generation_is_the_newer_one() -> None:
    tenth, ninth = (DamagedCheckpoint(f"step-0000000100.g{g}", "gone") for g in (10, 9))
    assert skipped_text(ninth.name, [report()], [tenth, ninth]) == f"; skipped {tenth}"


def test_a_rollback_that_is_allowed_is_said() -> None:
    told = KnownCheckpoint(150, "b", "/ck")
    line = check_newest(100, [report(OLD, known=told)], allow_rollback=True)
    assert line.endswith("the newest that can be read is step 100; rolling back to it (--allow-rollback)")
    line = check_newest(-1, [report(known=told)], allow_rollback=True)
    assert line.endswith("in /ck, but no checkpoint can be read (--allow-rollback)")


def test_step_0_is_a_step_that_can_be_read() -> None:
    line = check_newest(0, [report(known=KnownCheckpoint(150, "b", "/ck"))], allow_rollback=True)
    assert line.endswith("the newest that can be read is step 0; rolling back to it (--allow-rollback)")


def test_the_newest_word_of_what_was_committed_counts() -> None:
    assert known(
        [report(known=KnownCheckpoint(1, "a", "/x")), report(known=KnownCheckpoint(5, "b", "/y")), report()]
    ) == KnownCheckpoint(5, "b", "/y")


def test_a_rank_that_cannot_take_part_is_named() -> None:
    assert problem([report(), report(error="the folder is fenced")]) == "rank 1: the folder is fenced"
    assert problem([report()]) == ""


def test_parts_that_only_one_side_has_are_named() -> None:
    line = other_parts("the checkpoint of step 3", ["model", "ema", "sched"], ["model", "opt"])
    assert line == (
        "the checkpoint of step 3 has no component ema, sched, which starts with its initial state; "
        "component opt of the checkpoint of step 3 is not in this elastic.State and is ignored"
    )
    assert other_parts("the checkpoint of step 3", ["model"], ["model"]) == ""
