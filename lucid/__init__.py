"""Config-driven YOLO-style detectors whose training step is captured as CUDA graphs."""

__version__ = '0.1.0'
