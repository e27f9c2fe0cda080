"""How a grid is ranked by short loads."""

from collections.abc import Callable

from harness.ranking import Short, grid_of, rank

from batchedapi_core.simulation.tuning import Setting


def asking(
    truth: dict[Setting, float], asked: list[tuple[Setting, float]]
) -> Callable[[Setting, float], Short]:
    """Short loads of settings that hold what `truth` says, and run it."""

    def ask(setting: Setting, rate: float) -> Short:
        asked.append((setting, rate))
        most = truth[setting]
        held = most if most >= rate else 0.0
        return Short(setting, held, min(1.0, most / rate), keeps_up=most >= 0.8 * rate)

    return ask


def test_each_setting_is_asked_for_a_share_of_the_most_before_it() -> None:
    """So that one that was unlucky by less than a tenth stays in, and all others cost one load."""
    grid = [Setting(n, 0.01) for n in (64, 32, 16)]
    asked: list[tuple[Setting, float]] = []

    ranked = rank(
        grid, 0.01, 100.0, asking(dict(zip(grid, (90, 200, 50), strict=True)), asked), lambda: True
    )

    assert [90.0, 90.0, 180.0] == [rate for _, rate in asked]
    assert [grid[1], grid[0]] == [one.setting for one in ranked.best(2)]


def test_other_intervals_are_tried_only_of_sizes_that_keep_up() -> None:
    """Where full batches do not serve a load, no interval does; what holds most comes first."""
    grid = [Setting(n, d) for n in (64, 32, 4) for d in (0.0, 0.01)]
    truth = {one: {64: 80.0, 32: 100.0, 4: 10.0}[one.max_batch_size] for one in grid}
    asked: list[tuple[Setting, float]] = []

    ranked = rank(grid, 0.01, 100.0, asking(truth, asked), lambda: True)

    assert [Setting(32, 0.0), Setting(64, 0.0)] == [setting for setting, _ in asked[3:]]
    assert (1, 0) == (ranked.passed_by, ranked.left_out)


def test_settings_for_which_there_is_no_time_are_counted() -> None:
    """A table that hides them would call a part of the grid all of it."""
    grid = [Setting(n, 0.01) for n in (64, 32)]
    turns = iter([True, False])

    ranked = rank(grid, 0.01, 100.0, asking(dict.fromkeys(grid, 95.0), []), lambda: next(turns))

    assert (1, 1) == (len(ranked.asked), ranked.left_out)


def test_a_grid_counts_sizes_as_the_manifest_does() -> None:
    """Of sentences a row is some tokens; what a replica takes at once bounds all of them."""
    grid = grid_of(Setting(8, 0.01, 1, 3), 0.1, size_of_row=4.0, largest=500, processes=2)

    assert [500, 256, 128, 64, 32, 16, 8, 4] == list(dict.fromkeys(s.max_batch_size for s in grid))
    assert {0.0, 0.01, 0.025, 0.05} == {setting.batch_interval for setting in grid}
    assert {1, 2} == {setting.processes for setting in grid}
    assert {3} == {setting.threads for setting in grid}
    assert len(set(grid)) == len(grid)
