"""A text policy as seen by the parts it is built of, which its own module imports."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrl.policies.text.policy import TextPolicy as TextHost
else:
    TextHost = object
