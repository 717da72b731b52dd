"""Exits in words, and what the end of a log tells. The lines were printed by torch 2.13 (paths shortened)."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from elastic.core.failure_class import FailureClass
from elastic.core.text import SPLIT
from launcher.workers.exit_classification import (
    describe,
    raised_exception,
    stopped_while_ending,
    watched_exit,
    worker_exit,
)
from launcher.workers.failure_causes import CAUSES, CODE_WORDS, HUNG, UNFORMED, UNREACHED, classify

GLOO = "RuntimeError: [/p/third_party/gloo/gloo/transport/tcp/"
LOST = [
    f"[rank0]: {GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:43655. This is typically caused by",
    f"[rank2]: {GLOO}pair.cc:537] Read error [127.0.0.1]:29062: Connection reset by peer. This is typically",
    f"[rank2]: {GLOO}unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete",
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
    "torch.distributed.DistNetworkError: Broken pipe",
    "torch.distributed.DistNetworkError: The client socket has timed out after 12000ms while trying to connect to",
    "torch.distributed.DistStoreError: Timed out after 13 seconds waiting for clients. 2/3 clients joined.",
    "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/0",
    "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 12000 ms",
    "elastic.errors.ServerLost: server 0 at 127.0.0.1:6174 has not answered for 120 s; start it again",
    "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.21.5",
    "socketProgressOpt: Call to recv from 172.16.0.1<33759> failed : Connection reset by peer",
    "node0:13571 [0] NCCL WARN socketProgress: Connection closed by remote peer node2<42830>",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
]
IN_USE = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29202, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
WARNING = (
    "[W1120 10:31:22.98 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 127.0.0.1:29202 - "
    "retrying (try=0): Connection reset by peer"
)

TRACEBACK = "Traceback (most recent call last):"


class TestDescribe:
    @pytest.mark.parametrize(
        ("code", "words"),
        [
            (0, "exit 0"),
            (3, "exit 3"),
            (101, "exit 101, asks for a restart"),
            (127, "exit 127, the program was not found or could not be started"),
            (137, "exit 137, as after a signal: killed by SIGKILL, perhaps out of memory"),
            (255, "exit 255"),
            (-9, "killed by SIGKILL, perhaps out of memory"),
            (-11, "segmentation fault (SIGSEGV)"),
            (-15, "ended by SIGTERM"),
            (-signal.SIGUSR1, "ended by SIGUSR1"),
            (-40, "ended by signal 40"),
        ],
    )
    def test_an_exit_is_put_in_words(self, code: int, words: str) -> None:
        assert describe(code) == words

    def test_what_we_stopped_was_not_out_of_memory(self) -> None:
        assert describe(-9, stopped=True) == "stopped by the launcher (SIGKILL)"
        assert describe(143, stopped=True) == "stopped by the launcher (SIGTERM)"
        assert describe(1, stopped=True) == "stopped by the launcher, exit 1"

    def test_a_worker_that_left_because_it_was_asked_to_is_not_said_to_be_stopped_by_a_signal(self) -> None:
        assert describe(143, stopped=True, asked=True) == "saved and exited as requested"
        assert describe(-11, asked=True) == "saved and exited as requested, segmentation fault (SIGSEGV)"

    def test_a_worker_that_hangs_is_told_of_with_its_limit_its_last_step_and_its_stacks(self) -> None:
        numbers = {"limit_s": 1800.0, "step": 41, "state": "its stack traces are in its log"}
        shown = watched_exit(HUNG, numbers, 1, "workerlog.1", ["  File t.py"])
        assert shown.words == "no progress for 1800 s (--hang-timeout) after step 41; its stack traces are in its log"
        assert (shown.code, shown.tail, shown.failure, shown.why) == (-15, ("  File t.py",), FailureClass.SCRIPT, "")

    def test_workers_that_wait_for_machines_out_of_reach_and_for_a_group_are_told_of_with_their_limits(self) -> None:
        apart = watched_exit(UNREACHED, {"limit_s": 30.0, "nodes": "b-1f2e, c-77aa"}, 0, "workerlog.0", ["started"])
        said = "stalled for more than 30 s (--partition-timeout) while b-1f2e, c-77aa could not be reached"
        assert apart.words == said
        assert (apart.code, apart.tail, apart.failure, apart.why) == (-15, ("started",), FailureClass.PARTITION, SPLIT)
        late = watched_exit(UNFORMED, {"limit_s": 300.0}, 1, "workerlog.1", [])
        assert late.words.startswith(
            "process group not ready 300 s after all workers joined (10 × --partition-timeout)"
        )
        seen = (late.code, late.failure, late.why)
        assert seen == (-15, FailureClass.SECONDARY, ""), "nobody knows whose fault it is"


def seen_in(*lines: str) -> tuple[FailureClass, str]:
    """What is seen in the log of a worker that ended with exit code 1."""
    return classify(1, lines, (), {})


class TestSigns:
    @pytest.mark.parametrize("line", LOST)
    def test_a_lost_peer_is_seen(self, line: str) -> None:
        assert seen_in("Traceback (most recent call last):", line) == (FailureClass.SECONDARY, "")

    @pytest.mark.parametrize(
        "line",
        [
            "ConnectionRefusedError: [Errno 111] Connection refused",
            "BrokenPipeError: [Errno 32] Broken pipe",
            "requests.exceptions.ConnectionError: ('Connection aborted.', Connection reset by peer)",
            "ValueError: the dataset is empty",
            WARNING,
            IN_USE,
        ],
    )
    def test_the_scripts_own_errors_and_warnings_are_no_lost_peer(self, line: str) -> None:
        assert seen_in(line)[0] is not FailureClass.SECONDARY

    def test_an_address_in_use_is_the_machines_fault(self) -> None:
        assert seen_in(IN_USE) == (FailureClass.MACHINE, "address in use")
        assert seen_in("OSError: [Errno 98] Address already in use") == (FailureClass.MACHINE, "address in use")
        assert seen_in("ValueError: 98") == (FailureClass.SCRIPT, "")

    @pytest.mark.parametrize(
        ("line", "what"),
        [
            ("OSError: [Errno 28] No space left on device", "disk full"),
            ("RuntimeError: CUDA error: no CUDA-capable device is detected", "no CUDA device"),
            ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "no CUDA device"),
            ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "a broken CUDA device"),
        ],
    )
    def test_so_is_a_disk_that_is_full_and_a_card_that_is_gone(self, line: str, what: str) -> None:
        assert seen_in("Traceback (most recent call last):", line) == (FailureClass.MACHINE, what)

    @pytest.mark.parametrize(
        ("words", "failure"),
        [
            ("cannot start ./train: No such file or directory", FailureClass.CANNOT_START),
            ("could not start ./train: Text file busy", FailureClass.MACHINE),
        ],
    )
    def test_so_is_a_program_that_is_not_started_if_that_is_the_last_word(
        self, words: str, failure: FailureClass
    ) -> None:
        line = f"elastic-launch: {words}"
        assert seen_in(line) == (failure, words)
        assert seen_in(line, "ValueError: no") == (FailureClass.SCRIPT, "")
        assert seen_in(f"once {line}") == (FailureClass.SCRIPT, "")

    def test_an_error_that_was_overcome_long_ago_is_no_sign(self) -> None:
        assert seen_in(LOST[0], *("step" for _ in range(60)), "ValueError: no") == (FailureClass.SCRIPT, "")

    def test_frames_after_the_error_do_not_hide_it(self) -> None:
        frames = [f"frame #{i}: c10d::Something() + 0x{i} (0x7f in /lib/libtorch_cpu.so)" for i in range(80)]
        found = worker_exit(3, -6, "log/workerlog.3", [LOST[10], *frames])
        assert found.tail == (LOST[10],)
        assert (found.words, found.secondary, found.why) == ("aborted (SIGABRT)", True, "")

    def test_a_worker_that_we_stopped_or_that_succeeded_shows_no_signs(self) -> None:
        assert not worker_exit(0, 1, "", LOST, stopped=True).secondary
        assert not worker_exit(0, 0, "", LOST).secondary
        assert worker_exit(0, 0, "", [IN_USE]).failure is FailureClass.SCRIPT

    def test_the_word_that_no_restart_helps_counts_for_a_worker_that_failed_by_itself(self) -> None:
        ended = worker_exit(0, 1, "", [], unrecoverable="there is no step 11")
        assert (ended.failure, ended.why) == (FailureClass.UNRECOVERABLE, "there is no step 11")
        assert worker_exit(0, 143, "", [], stopped=True, unrecoverable="there is no step 11").why == ""

    @pytest.mark.parametrize(
        ("code", "lines", "error"),
        [
            (
                1,
                ['  File "t.py", line 1', "    x = = 1", "        ^", "SyntaxError: invalid syntax"],
                "SyntaxError: inv",
            ),
            (1, [TRACEBACK, "    import a", "ModuleNotFoundError: No module named 'a'"], "ModuleNotFoundError: No m"),
            (1, [TRACEBACK, "    import a", "[W1 x.cpp] bye", "ImportError: libcuda.so.1: no"], "ImportError: libcuda"),
            (2, ["usage: t.py [-h]", "t.py: error: unrecognized arguments: --x"], "t.py: error: unrecognized"),
            (2, ["Usage: t.py [OPTIONS]", "Try 't.py --help'", "Error: No such option: --x"], "Error: No such option"),
            (2, ["something went wrong"], ""),
            (1, ["usage: t.py [-h]"], ""),
            (1, [TRACEBACK, "    import a", "ImportError: no", TRACEBACK, "    raise", "RuntimeError: install a"], ""),
            (1, ["Exception in thread T:", TRACEBACK, "    import a", "ImportError: no"], ""),
            (1, [TRACEBACK, "    raise", "a.ImportErrors: no"], ""),
            (1, [], ""),
        ],
    )
    def test_an_error_of_syntax_import_or_usage_keeps_a_script_from_starting(
        self, code: int, lines: list[str], error: str
    ) -> None:
        found = worker_exit(0, code, "", lines, starting=True)
        assert found.why.startswith(error)
        assert (found.failure is FailureClass.STARTUP) == bool(found.why) == bool(error)
        assert worker_exit(0, code, "", lines).failure is FailureClass.SCRIPT
        assert worker_exit(0, -15, "", lines, starting=True, stopped=True).failure is FailureClass.SCRIPT

    def test_a_lost_peer_counts_before_all_else_and_what_no_restart_mends_before_the_machine(self) -> None:
        missing = [IN_USE, TRACEBACK, "    import a", "ImportError: no a"]
        said = "there is no step 11"

        def counts(*more: str, code: int = 1, **told: Any) -> tuple[FailureClass, str]:
            found = worker_exit(0, code, "", [*missing, *more], **told)
            return found.failure, found.why

        assert counts(LOST[0], unrecoverable=said, starting=True) == (FailureClass.SECONDARY, "")
        assert counts(unrecoverable=said, starting=True) == (FailureClass.UNRECOVERABLE, said)
        assert counts(starting=True) == (FailureClass.STARTUP, "ImportError: no a")
        assert counts(code=101) == (FailureClass.RESTART_REQUESTED, "")
        assert counts() == (FailureClass.MACHINE, "address in use")

    def test_a_cause_has_a_name_of_its_own_and_a_way_to_see_it(self) -> None:
        assert len({cause.name for cause in CAUSES}) == len(CAUSES)
        assert len({cause.code for cause in CAUSES if cause.code is not None}) == len(CODE_WORDS)
        assert all(cause.recognised for cause in CAUSES)

    def test_a_tail_of_nothing_but_noise_is_still_shown(self) -> None:
        assert worker_exit(0, 1, "", [WARNING]).tail == (WARNING,)


TRACE = (
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "train.py", line 12, in <module>',
    '[rank1]:     raise OSError(5, "Input/output error")',
    "[rank1]: OSError: [Errno 5] Input/output error",
)


class TestAWorkerThatHadFailedBeforeItWasStopped:
    def test_a_log_that_ends_with_a_traceback_shows_it(self) -> None:
        assert raised_exception(TRACE) == "OSError"
        assert (
            raised_exception(["step 7", *TRACE, WARNING, "terminate called without an active exception"]) == "OSError"
        )
        assert (
            raised_exception(["Traceback (most recent call last):", '  File "a"', "my.module.Problem"])
            == "my.module.Problem"
        )

    @pytest.mark.parametrize(
        "lines",
        [
            (),
            ("step 7",),
            (*TRACE, "step 8"),
            ("OSError: [Errno 5] Input/output error",),
            (TRACE[0], TRACE[1], "KeyboardInterrupt"),
            (TRACE[0], TRACE[1], "SystemExit: 3"),
            ("Exception in thread Thread-1:", *TRACE),
        ],
    )
    def test_any_other_end_does_not(self, lines: tuple[str, ...]) -> None:
        assert raised_exception(lines) == ""

    def test_what_another_thread_wrote_within_it_does_not_hide_it(self) -> None:
        assert raised_exception([*TRACE[:2], "loss 0.5", *TRACE[2:], "    more of its message"]) == "OSError"

    def test_an_error_inside_a_data_loaders_process_counts(self) -> None:
        inside = "OSError: Caught OSError in DataLoader worker process 0."
        assert (
            raised_exception([TRACE[0], TRACE[1], inside, "Original Traceback (most recent call last):", *TRACE[1:]])
            == "OSError"
        )

    def test_what_is_recorded_of_it_says_both(self) -> None:
        found = stopped_while_ending(1, -15, "log/workerlog.1", TRACE)
        assert found is not None
        assert found.words == "raised OSError, and was stopped while it exited"
        assert (found.rank, found.tail, found.secondary) == (1, TRACE, False)

    def test_a_lost_peer_is_not_a_failure_of_its_own(self) -> None:
        assert stopped_while_ending(1, -15, "", [TRACE[0], f"RuntimeError: {LOST[0]}"]) is None
