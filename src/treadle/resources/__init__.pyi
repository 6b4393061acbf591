"""The names of the package, each with its module. Type checkers read this file, and so does `__init__.py`."""

from treadle.resources.app_resources import AppResources as AppResources
from treadle.resources.dependency import depends as depends
from treadle.resources.injector import Injector as Injector
from treadle.resources.injector import bound as bound
from treadle.resources.injector import injector_of as injector_of
from treadle.resources.life import LEAVING as LEAVING
from treadle.resources.life import Life as Life
from treadle.resources.lifespan import Lifespan as Lifespan
from treadle.resources.lifespan import state_of as state_of
from treadle.resources.plan import Overrides as Overrides
from treadle.resources.threads import NewThreads as NewThreads
