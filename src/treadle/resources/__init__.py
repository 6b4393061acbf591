"""Resources of a process: the lifespan of an app."""

from treadle.resources.app_resources import AppResources
from treadle.resources.life import LEAVING, Life
from treadle.resources.lifespan import Lifespan
from treadle.resources.state import state_of

__all__ = ["LEAVING", "AppResources", "Life", "Lifespan", "state_of"]
