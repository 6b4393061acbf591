"""Resources of a process and of a run: the lifespan of an app, and the dependencies of its tasks."""

from treadle.resources.app_resources import AppResources
from treadle.resources.dependency import depends
from treadle.resources.injector import Injector, bound, injector_of
from treadle.resources.life import LEAVING, Life
from treadle.resources.lifespan import Lifespan
from treadle.resources.plan import Overrides
from treadle.resources.state import state_of
from treadle.resources.threads import NewThreads

__all__ = [
    "LEAVING",
    "AppResources",
    "Injector",
    "Life",
    "Lifespan",
    "NewThreads",
    "Overrides",
    "bound",
    "depends",
    "injector_of",
    "state_of",
]
