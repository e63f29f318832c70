# What every run has: loops, hooks, logs, environment. Hooks of your own go into custom_hooks.
default_scope = 'lucid'

default_hooks = dict(
    runtime_info=dict(type='DeferredInfoHook'),
    timer=None,  # DeferredInfoHook measures, on logging iterations only
    sampler_seed=None,  # EpochTrainLoop tells the sampler its epoch, and where in it to start
    logger=dict(type='LoggerHook', interval=50, ignore_last=False, interval_exp_name=10**9),
    param_scheduler=dict(type='SchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=1, save_best='auto'),
    ema=dict(type='EMAHook'),
    branch_weight=dict(type='BranchWeightHook'),
    early_stopping=dict(type='EarlyStoppingHook', patience=None),  # epochs without a better save_best; None: never
    # time_share: of a processor, which the workers of the data loader can use too
    pictures=dict(type='VisualizationHook', time_share=0.05),
    figures=dict(type='EvaluationFiguresHook'),
    curves=dict(type='CurvesHook', time_share=0.05),
    progress=dict(type='ProgressHook'),
    environment=dict(type='EnvironmentHook'),
    device_images=dict(type='DeviceImagesHook'),
)
custom_hooks = []

# The hub holds means over the iterations since the last line, so that one value is the window.
log_processor = dict(type='LogProcessor', window_size=1)
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')])
log_level = 'INFO'

env_cfg = dict(
    cudnn_benchmark=True, mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0), dist_cfg=dict(backend='nccl')
)
randomness = dict(seed=0, deterministic=False)
launcher = 'none'
