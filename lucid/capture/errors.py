"""What capture raises: every message says what is wrong and ends with the remedy."""


class CaptureError(RuntimeError):
    """Capture cannot do what was asked; the message is ``what; remedy``."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f'{self.what}; {self.remedy}'


class TargetError(CaptureError):
    """The target does not exist, is compiled, or is captured already."""


class SignatureError(CaptureError):
    """A call does not fit any recording and the policy says to raise, or its inputs can have no static buffer."""


class GuardError(CaptureError):
    """Module state that a recording baked in has changed and the policy says to raise."""


class RecordingError(CaptureError):
    """Recording the target failed; the model, the generators and the process are as before."""


class HostReadError(RecordingError):
    """The target reads a tensor on the host: a graph would freeze the value that it saw."""


class DynamicShapeError(RecordingError):
    """The target makes a tensor whose shape depends on values: a graph has fixed shapes."""


class BackwardError(CaptureError):
    """A backward that a recording cannot serve: a second one, one with ``create_graph``, one after release."""
