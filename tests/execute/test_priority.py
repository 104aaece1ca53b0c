"""Real-time priority for waits, asked of the kernel, for the calling thread and those it starts."""

import os
import resource
import subprocess
import sys
import threading

import pytest

from crosspipe.execute.priority import may_be_prompt, patiently, promptly


def policy() -> int:
    return os.sched_getscheduler(0)


def policy_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(policy()))
    thread.start()
    thread.join()
    return found[0]


allowed = pytest.mark.skipif(
    os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_RTPRIO)[0] < 1, reason="needs root or RLIMIT_RTPRIO"
)


@allowed
def test_waits_and_the_threads_started_for_them_go_first_and_mathematics_does_not():
    with promptly():
        assert policy() == policy_of_a_new_thread() == os.SCHED_FIFO
        with patiently():
            assert policy() == policy_of_a_new_thread() == os.SCHED_OTHER
        assert policy() == os.SCHED_FIFO
        with promptly():
            pass
        assert policy() == os.SCHED_FIFO
    assert policy() == policy_of_a_new_thread() == os.SCHED_OTHER
    assert may_be_prompt()


@allowed
def test_priority_is_given_back_after_an_error():
    with pytest.raises(KeyError), promptly(), patiently():
        raise KeyError
    assert policy() == os.SCHED_OTHER


def test_outside_of_a_wait_mathematics_changes_nothing():
    with patiently():
        assert policy() == os.SCHED_OTHER
    assert policy() == os.SCHED_OTHER


@allowed
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_where_the_system_does_not_allow_it_all_run_alike_and_it_is_known():
    code = (
        "import os, resource; resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0)); os.setgroups([]); os.setuid(65534)\n"
        "with promptly(): print(os.sched_getscheduler(0) == os.SCHED_OTHER)\n"
        "print(may_be_prompt())"
    )
    program = f"from crosspipe.execute.priority import may_be_prompt, promptly\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
