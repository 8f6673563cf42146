"""An image generator as seen by the parts it is built of, which its own module imports."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrl.policies.flow.policy import FlowPolicy as FlowHost
else:
    FlowHost = object
