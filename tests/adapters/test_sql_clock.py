"""The store's clock: monotonic, anchored once, deaf to steps of the wall clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amble.adapters.sql.clock import StoreClock, boot_id, boot_ms, wall_ms
from amble.adapters.sql.connection import Database, open_writer
from amble.adapters.sql.migrations import migrate

HOUR = 3_600_000
NOON = 1_700_000_000_000


class Machine:
    """A machine whose clocks the test sets."""

    def __init__(self) -> None:
        self.boot, self.wall, self.name = 5_000, NOON, "boot one"
        self.database: Database = open_writer(":memory:")
        migrate(self.database, NOON)

    def open(self) -> StoreClock:
        return StoreClock(self.database, boot=lambda: self.boot, wall=lambda: self.wall, boot_name=self.name)

    def pass_time(self, ms: int) -> None:
        self.boot += ms
        self.wall += ms


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_new_store_starts_at_the_wall_clock_and_counts_real_time(machine: Machine) -> None:
    clock = machine.open()
    assert clock.now() == NOON
    machine.pass_time(1_234)
    assert clock.now() == NOON + 1_234


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_wall_clock_while_running_changes_nothing(machine: Machine, step: int) -> None:
    clock = machine.open()
    machine.wall += step
    machine.pass_time(10)
    assert clock.now() == NOON + 10


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_over_a_restart_on_the_same_boot_changes_nothing(machine: Machine, step: int) -> None:
    clock = machine.open()
    machine.pass_time(10)
    assert clock.now() == NOON + 10
    clock.write_mark()
    machine.wall += step
    machine.pass_time(500)
    assert machine.open().now() == NOON + 510


def reboot(machine: Machine, wall_step: int) -> None:
    machine.name, machine.boot = "boot two", 100
    machine.wall += wall_step


@pytest.mark.parametrize(("step", "expected"), [(HOUR, NOON + HOUR), (-HOUR, NOON)])
def test_after_a_reboot_it_is_the_later_of_wall_and_mark(machine: Machine, step: int, expected: int) -> None:
    clock = machine.open()
    clock.now()
    clock.write_mark()
    reboot(machine, step)
    assert machine.open().now() == expected


def test_a_boot_clock_before_its_mark_is_taken_for_another_boot(machine: Machine) -> None:
    clock = machine.open()
    clock.now()
    clock.write_mark()
    machine.boot -= 1_000
    assert machine.open().now() == NOON


def test_an_unnamed_boot_is_never_trusted_to_be_the_same(machine: Machine) -> None:
    machine.name = ""
    clock = machine.open()
    clock.now()
    clock.write_mark()
    machine.pass_time(5)
    machine.wall += HOUR
    assert machine.open().now() == NOON + HOUR + 5


def test_an_injected_source_is_held_to_never_go_back(machine: Machine) -> None:
    times = iter([50, 40, 60])
    clock = StoreClock(machine.database, now_ms=lambda: next(times))
    assert [clock.now() for _ in range(3)] == [50, 50, 60]


@pytest.mark.parametrize("read", [boot_ms, wall_ms])
def test_the_machine_has_these_clocks(read: Callable[[], int]) -> None:
    assert 0 < read() <= read()


def test_this_boot_has_one_name() -> None:
    assert boot_id() == boot_id()
