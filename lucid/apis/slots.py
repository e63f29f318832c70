"""Which registry each place of a config belongs to, and which keys the places without a class take."""

import inspect
from collections.abc import Mapping
from typing import NamedTuple

from mmengine import registry as root
from mmengine.dist import init_dist
from mmengine.registry import Registry
from mmengine.runner import Runner
from mmengine.utils.dl_utils import set_multi_processing
from torch.utils.data import DataLoader

from lucid import registry as own


class Slot(NamedTuple):
    """How a place of a config is built.

    registry: where its ``type`` is looked up
    default:  its type where it states none
    more:     keys that are read before the class is built
    given:    parameters that are filled in, so a config does not state them
    """

    registry: Registry
    default: str | None = None
    more: tuple[str, ...] = ()
    given: tuple[str, ...] = ()


_LOOP = ('runner', 'dataloader')
TOP_SLOTS: Mapping[str, Slot] = {
    'model': Slot(own.MODELS),
    'train_cfg': Slot(own.LOOPS, 'EpochTrainLoop', ('by_epoch',), _LOOP),
    'val_cfg': Slot(own.LOOPS, 'ValLoop', (), (*_LOOP, 'evaluator')),
    'test_cfg': Slot(own.LOOPS, 'TestLoop', (), (*_LOOP, 'evaluator')),
    'optim_wrapper': Slot(own.OPTIM_WRAPPERS, 'OptimWrapper', ('constructor', 'paramwise_cfg')),
    'param_scheduler': Slot(own.PARAM_SCHEDULERS, None, ('convert_to_iter_based',), ('optimizer', 'epoch_length')),
    'val_evaluator': Slot(own.METRICS),
    'test_evaluator': Slot(own.METRICS),
    'custom_hooks': Slot(own.HOOKS, None, ('priority',)),
    'visualizer': Slot(own.VISUALIZERS, 'Visualizer'),
    'log_processor': Slot(own.LOG_PROCESSORS, 'LogProcessor'),
    'model_wrapper_cfg': Slot(own.MODEL_WRAPPERS, 'DistributedModel', (), ('module',)),
}
HOOK_SLOT = TOP_SLOTS['custom_hooks']
DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
DATALOADER_BUILT = ('dataset', 'sampler', 'collate_fn')
INNER_SLOTS: Mapping[str, Slot] = {
    'backbone': Slot(own.MODELS, 'YOLOBackbone'),
    'neck': Slot(own.MODELS, 'YOLONeck'),
    'data_preprocessor': Slot(own.MODELS, 'DetDataPreprocessor'),
    'head': Slot(own.HEADS, 'DetectHead'),
    'loss': Slot(own.LOSSES, 'DetectionLoss'),
    'assigner': Slot(own.TASK_UTILS, 'TaskAlignedAssigner'),
    'assigner_o2m': Slot(own.TASK_UTILS, 'TaskAlignedAssigner'),
    'assigner_o2o': Slot(own.TASK_UTILS, 'TaskAlignedAssigner'),
    'dataset': Slot(own.DATASETS),
    'datasets': Slot(own.DATASETS),
    'pipeline': Slot(own.TRANSFORMS),
    'transforms': Slot(own.TRANSFORMS),
    'sampler': Slot(own.DATA_SAMPLERS, None, (), ('dataset',)),
    'collate_fn': Slot(own.FUNCTIONS, None, (), ('draw',)),
    'optimizer': Slot(own.OPTIMIZERS, None, (), ('params',)),
    'metrics': Slot(own.METRICS),
    'vis_backends': Slot(own.VISBACKENDS),
    'regions': Slot(own.REGIONS),
    'init_cfg': Slot(root.WEIGHT_INITIALIZERS),
}
# What a dict with a `type` in an unforeseen place may be.
ANYWHERE: tuple[Registry, ...] = tuple(value for value in vars(own).values() if isinstance(value, Registry))

# mmengine's six, and what lucid's base configs add; other hooks go into custom_hooks. mmengine would take any name, and
# a misspelt one would run beside the hook that it meant to replace.
DEFAULT_HOOKS = (
    *('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint'),
    *(
        'ema',
        'branch_weight',
        'early_stopping',
        'pictures',
        'figures',
        'curves',
        'progress',
        'environment',
        'device_images',
    ),
)


def parameters_of(function: object, *, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the named parameters of a function, except ``self`` and those in ``without``."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return tuple(name for name in named if name not in ('self', *without))


# Keys of the places that are no class, by their path.
MAPPINGS: Mapping[str, tuple[str, ...]] = {
    'randomness': parameters_of(Runner.set_randomness),
    'auto_scale_lr': ('base_batch_size', 'enable'),
    'custom_imports': ('imports', 'allow_failed_imports'),
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'env_cfg.mp_cfg': parameters_of(set_multi_processing, without=('distributed',)),
    'env_cfg.dist_cfg': (*parameters_of(init_dist, without=('launcher',)), 'timeout'),
    'optim_wrapper.clip_grad': ('type', 'max_norm', 'norm_type', 'clip_value'),
}
# What lucid sets itself: batches come by batch_size, and workers and order by the run's seed.
DATALOADER_KEYS = (
    *parameters_of(
        DataLoader.__init__, without=('batch_sampler', 'worker_init_fn', 'generator', 'multiprocessing_context')
    ),
    *('device_images', 'device_pool_mb'),
)
TOP_KEYS = (
    # Resuming is a flag of the tool, and the data preprocessor belongs to the model.
    *parameters_of(Runner.__init__, without=('cfg', 'resume', 'data_preprocessor')),
    # Read by the runner from the config itself.
    *('model_wrapper_cfg', 'find_unused_parameters', 'sync_bn', 'compile', 'activation_checkpointing'),
    *('efficient_conv_bn_eval', 'custom_imports'),
    # lucid's own: filled into every data set that does not state its own,
    *('data_root', 'image_size'),
    # and what optim_wrapper.accumulative_counts follows from.
    'effective_batch_size',
)

# Smallest value of whole numbers, by key, wherever they stand.
AT_LEAST: Mapping[str, int] = {
    'batch_size': 1,
    'num_workers': 0,
    'prefetch_factor': 1,
    'device_pool_mb': 0,
    'cache_mb': 0,
    'max_epochs': 1,
    'val_interval': 1,
    'val_begin': 0,
    'accumulative_counts': 1,
    'effective_batch_size': 1,
    'base_batch_size': 1,
    'seed': 0,
}
# Numbers that make no sense at or below zero.
POSITIVE = ('lr', 'max_norm')

ELSEWHERE = {
    'epochs': 'train_cfg.max_epochs',
    'max_epochs': 'train_cfg.max_epochs',
    'batch': 'train_dataloader.batch_size',
    'batch_size': 'train_dataloader.batch_size',
    'num_workers': 'train_dataloader.num_workers',
    'lr': 'optim_wrapper.optimizer.lr',
    'imgsz': 'image_size',
    'patience': 'default_hooks.early_stopping.patience',
    'on_bad': 'train_dataloader.dataset.on_bad',
    'num_classes': 'model.num_classes',
    'num_keypoints': 'model.num_keypoints',
}
"""What is looked for at the top level, and where it is."""
