import threading
import time
from collections.abc import Callable

import pytest

from fredholm.training.storage.background import Background


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_job_runs_beside_the_process_and_is_waited_for() -> None:
    goes_on, done, background = threading.Event(), list[str](), Background()
    background.start(lambda: (goes_on.wait(60), done.append("job"))[1])
    assert not done
    assert not background.has_failed
    goes_on.set()
    background.wait()
    assert done == ["job"]
    background.wait()


def test_the_next_job_begins_after_the_one_before() -> None:
    order, background = list[int](), Background()
    background.start(lambda: (time.sleep(0.05), order.append(1))[1])
    background.start(lambda: order.append(2))
    background.wait()
    assert order == [1, 2]


def test_an_error_is_told_once() -> None:
    def fails() -> None:
        raise OSError("no room")

    background = Background()
    background.start(fails)
    until(lambda: background.has_failed)
    with pytest.raises(OSError, match="no room"):
        background.start(lambda: None)
    assert not background.has_failed
    background.wait()


def test_no_thread_is_left_behind() -> None:
    seen, background = list[threading.Thread](), Background()
    background.start(lambda: seen.append(threading.current_thread()))
    background.wait()
    seen[0].join(60)
    assert not seen[0].is_alive()
