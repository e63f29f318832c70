# MuSGD with warm-up and linear decay per optimizer step; the length of a run is train_cfg.max_epochs alone. Of the
# optimizer only the rate is stated, so that naming another type leaves no keys behind that it does not take.
train_cfg = dict(type='EpochTrainLoop', max_epochs=100, val_interval=1)
val_cfg = dict(type='ValLoop')

optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='MuSGD', lr=0.01), clip_grad=dict(max_norm=10.0))
param_scheduler = dict(type='WarmupLinearLR', warmup_epochs=3.0, lrf=0.01)

effective_batch_size = None  # images per optimizer step over all processes; sets optim_wrapper.accumulative_counts
auto_scale_lr = dict(enable=False, base_batch_size=64)  # lr times images per step over this many
