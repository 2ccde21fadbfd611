"""The same algorithm on devices, through Flower: nothing crosses but broadcasts and uploads.

It needs the extra ``flower`` (``pip install "moiety[flower]"``).
"""

try:
    import flwr as _flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError('`moiety.deploy` needs Flower. Install it with pip install "moiety[flower]".') from error

from moiety.deploy.app import App, app
from moiety.deploy.arrivals import replay_clock
from moiety.deploy.declared import read_file
from moiety.deploy.device import Device
from moiety.deploy.tables import table

__all__ = ["App", "Device", "app", "read_file", "replay_clock", "table"]
