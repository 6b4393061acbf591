"""The fleets of our own simulations, as arguments of `simulate`."""

from __future__ import annotations

from typing import Any

from tests.simulate import branches, budgets, limited, mix, orderly, poison, rates, repeats, saga, undo
from tests.simulate.invariants import ALWAYS
from tests.simulate.promptness import due_jobs_start_soon
from treadle.testing.simulation import KINDS

FLEETS: dict[str, dict[str, Any]] = {
    "mixed": {"app": mix.app, "scenario": mix.work, "invariants": mix.INVARIANTS},
    "repeats": {"app": repeats.app, "scenario": repeats.work, "invariants": mix.INVARIANTS},
    "orderly": {
        "app": orderly.app,
        "scenario": orderly.work,
        "invariants": (orderly.no_tick_is_left_out, *ALWAYS),
        "options": orderly.WORKERS,
        "faults": tuple(kind for kind in KINDS if kind != "clock"),
    },
    "poison": {"app": poison.app, "scenario": poison.work, "invariants": (poison.the_innocent_end_well,)},
    "saga": {
        "app": saga.app,
        "scenario": saga.work,
        "invariants": (saga.each_trip_is_booked_or_undone,),
        "faults": saga.FAULTS,
    },
    "branches": {
        "app": branches.app,
        "scenario": branches.work,
        "invariants": (branches.each_order_has_decided_once,),
        "faults": branches.FAULTS,
    },
    "undo": {
        "app": undo.app,
        "scenario": undo.work,
        "invariants": (undo.each_trip_is_booked_or_undone,),
        "faults": undo.FAULTS,
    },
    "limited": {
        "app": limited.app,
        "scenario": limited.work,
        "invariants": (undo.each_trip_is_booked_or_undone,),
        "faults": undo.FAULTS,
    },
    "budgets": {"app": budgets.app, "scenario": budgets.work},
    "rates": {"app": rates.app, "scenario": rates.work, "invariants": (due_jobs_start_soon,)},
}
