"""The registries, each a child of mmengine's root, so that ``default_scope='lucid'`` finds a class by its bare name.

``HEADS``, ``LOSSES`` and ``REGIONS`` have no parent: mmengine has no root for them, and two siblings with one scope
under one parent collide.
"""

from mmengine import registry as root
from mmengine.registry import Registry

SCOPE = 'lucid'


def _child(name: str, parent: Registry, *locations: str) -> Registry:
    return Registry(name, parent=parent, scope=SCOPE, locations=list(locations))


MODELS = _child('model', root.MODELS, 'lucid.models')
OPTIMIZERS = _child('optimizer', root.OPTIMIZERS, 'lucid.engine.optimizers')
OPTIM_WRAPPERS = _child('optim wrapper', root.OPTIM_WRAPPERS, 'lucid.engine.optim_wrappers')
# Empty, but without a child of this scope mmengine warns each time it looks here.
OPTIM_WRAPPER_CONSTRUCTORS = _child('optimizer wrapper constructor', root.OPTIM_WRAPPER_CONSTRUCTORS)
MODEL_WRAPPERS = _child('model wrapper', root.MODEL_WRAPPERS, 'lucid.engine')
PARAM_SCHEDULERS = _child('parameter scheduler', root.PARAM_SCHEDULERS, 'lucid.engine.schedulers')
HOOKS = _child('hook', root.HOOKS, 'lucid.engine.hooks')
LOOPS = _child('loop', root.LOOPS, 'lucid.engine.loops')
LOG_PROCESSORS = _child('log processor', root.LOG_PROCESSORS)
DATASETS = _child('dataset', root.DATASETS, 'lucid.datasets')
DATA_SAMPLERS = _child('data sampler', root.DATA_SAMPLERS, 'lucid.datasets')
TRANSFORMS = _child('transform', root.TRANSFORMS, 'lucid.datasets')
FUNCTIONS = _child('function', root.FUNCTIONS, 'lucid.datasets')
METRICS = _child('metric', root.METRICS, 'lucid.evaluation')
TASK_UTILS = _child('task util', root.TASK_UTILS, 'lucid.models')
VISUALIZERS = _child('visualizer', root.VISUALIZERS, 'lucid.visualization')
VISBACKENDS = _child('visualizer backend', root.VISBACKENDS, 'lucid.visualization')

HEADS = Registry('head', scope=SCOPE, locations=['lucid.models'])
LOSSES = Registry('loss', scope=SCOPE, locations=['lucid.models'])
REGIONS = Registry('region', scope=SCOPE, locations=['lucid.engine'])
